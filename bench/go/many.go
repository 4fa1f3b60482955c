// The works of many topics at once and of many consumers, for bench/many.py and bench/live.py.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	// What a work leaves to be written is not counted in the next one.
	pause = 300 * time.Millisecond
	// The keys of a Key_Shared subscription, spread evenly.
	keys = 1000
	// Where a topic is idle, its client holds little memory for it.
	idleQueue = 10
	// Each topic of idle sends a message so often.
	idleEvery = 10 * time.Second
)

// ends are a producer and a consumer of one topic.
type ends struct {
	producer pulsar.Producer
	consumer pulsar.Consumer
}

// many measures rounds of many topics at once, over one connection. In a round, a topic sends a message and waits for
// its receipt; with receive it also receives the message, with acknowledge it also acknowledges it and waits for the
// answer. What acknowledges comes first, so that no work begins with messages of another.
func many() []result {
	client := connect()
	defer client.Close()
	opened := openAll(client, pulsar.ProducerOptions{}, pulsar.ConsumerOptions{AckWithResponse: true})
	rounds := max(1, *count / *topics)
	roundTrips(opened, "acknowledge", func(_, done int) bool { return done < 1 })
	var measured []result
	for _, work := range []string{"acknowledge", "receive", "send"} {
		time.Sleep(pause)
		measured = append(measured, roundTrips(opened, work, func(_, done int) bool { return done < rounds }))
	}
	return measured
}

// long measures acknowledged rounds as fast as they go, in parts of some seconds, one after the other.
func long() []result {
	client := connect()
	defer client.Close()
	opened := openAll(client, pulsar.ProducerOptions{}, pulsar.ConsumerOptions{AckWithResponse: true})
	var measured []result
	for part := range *parts {
		until := time.Now().Add(time.Duration(*partSeconds * float64(time.Second)))
		each := roundTrips(opened, "acknowledge", func(_, _ int) bool { return time.Now().Before(until) })
		each.Work = fmt.Sprintf("part-%d", part+1)
		measured = append(measured, each)
	}
	return measured
}

// openAll opens a producer and a consumer of each topic, some topics at once.
func openAll(client pulsar.Client, producing pulsar.ProducerOptions, consuming pulsar.ConsumerOptions) []ends {
	opened := make([]ends, *topics)
	eachTopic(func(number int, name string) {
		producer, consumer := producing, consuming
		producer.Topic, producer.DisableBatching = name, true
		consumer.Topic, consumer.SubscriptionName, consumer.Type = name, "many", pulsar.Shared
		// Else each consumer has a timer that fires ten times a second.
		consumer.AckGroupingOptions = &pulsar.AckGroupingOptions{MaxSize: 1}
		var err error
		opened[number].producer, err = client.CreateProducer(producer)
		check(err)
		opened[number].consumer, err = client.Subscribe(consumer)
		check(err)
	})
	return opened
}

func eachTopic(do func(number int, name string)) {
	inParallel(*topics, func(number int) { do(number, fmt.Sprintf("%s-%d", *topic, number)) })
}

// roundTrips has each topic do a round after the other, while more says so.
func roundTrips(opened []ends, work string, more func(number, done int) bool) result {
	payload := make([]byte, *size)
	took := make([][]time.Duration, len(opened))
	measured := timed(func() {
		var all sync.WaitGroup
		for number, each := range opened {
			all.Add(1)
			go func() {
				defer all.Done()
				for more(number, len(took[number])) {
					began := time.Now()
					_, err := each.producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: payload})
					check(err)
					if work != "send" {
						message := receive(each.consumer)
						if work == "acknowledge" {
							check(each.consumer.Ack(message))
						}
					}
					took[number] = append(took[number], time.Since(began))
				}
			}()
		}
		all.Wait()
	})
	var flat []time.Duration
	for _, each := range took {
		flat = append(flat, each...)
	}
	measured.Work, measured.Count = work, len(flat)
	return measured.with(flat)
}

// spread sends single messages to many topics in turn, without waiting, and without a consumer.
func spread() []result {
	client := connect()
	defer client.Close()
	producers := make([]pulsar.Producer, *topics)
	eachTopic(func(number int, name string) {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: name, DisableBatching: true, MaxPendingMessages: queue(),
		})
		check(err)
		producers[number] = producer
	})
	payload := make([]byte, *size)
	return []result{timed(func() {
		var receipts sync.WaitGroup
		receipts.Add(*count)
		for number := range *count {
			producers[number%*topics].SendAsync(
				context.Background(),
				&pulsar.ProducerMessage{Payload: payload},
				func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
					check(err)
					receipts.Done()
				},
			)
		}
		receipts.Wait()
	})}
}

// fanOut receives and acknowledges a backlog of batches of one topic, by some subscriptions of some consumers each. The
// count is that of all messages received.
func fanOut() []result {
	client := connect()
	defer client.Close()
	kinds := map[string]pulsar.SubscriptionType{
		"exclusive": pulsar.Exclusive, "shared": pulsar.Shared, "key-shared": pulsar.KeyShared,
	}
	kind, known := kinds[*kindName]
	if !known {
		check(fmt.Errorf("unknown kind: %s", *kindName))
	}
	publishBacklog(client, kind == pulsar.KeyShared)
	wanted := int64(*count * *subscriptions)
	var received atomic.Int64
	var all sync.WaitGroup
	done := make(chan struct{})
	measured := timed(func() {
		for number := range *subscriptions * *consumers {
			all.Add(1)
			go func() {
				defer all.Done()
				consumer, err := client.Subscribe(pulsar.ConsumerOptions{
					Topic:                       *topic,
					SubscriptionName:            fmt.Sprintf("fan-out-%d", number / *consumers),
					Type:                        kind,
					SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
				})
				check(err)
				for {
					select {
					case message := <-consumer.Chan():
						check(consumer.Ack(message.Message))
						if received.Add(1) == wanted {
							close(done)
						}
					case <-done:
						return
					case <-silent():
						check(fmt.Errorf("%d of %d messages came", received.Load(), wanted))
					}
				}
			}()
		}
		all.Wait()
	})
	measured.Count = int(wanted)
	return []result{measured}
}

func publishBacklog(client pulsar.Client, keyed bool) {
	options := pulsar.ProducerOptions{
		Topic: *topic, BatchingMaxMessages: batchMessagesMax, BatchingMaxSize: batchBytesMax, MaxPendingMessages: queue(),
	}
	if keyed {
		options.BatcherBuilderType = pulsar.KeyBasedBatchBuilder
	}
	producer, err := client.CreateProducer(options)
	check(err)
	defer producer.Close()
	payload := make([]byte, *size)
	for number := range *count {
		message := &pulsar.ProducerMessage{Payload: payload}
		if keyed {
			message.Key = fmt.Sprintf("key-%d", number%keys)
		}
		producer.SendAsync(context.Background(), message, confirmed)
	}
	check(producer.FlushWithCtx(context.Background()))
}

// idle sends a message to each topic every ten seconds, evenly, and receives and acknowledges it. It measures after
// each topic had its first message.
func idle() []result {
	producing := pulsar.ProducerOptions{MaxPendingMessages: idleQueue}
	consuming := pulsar.ConsumerOptions{ReceiverQueueSize: idleQueue}
	return []result{evenly(float64(*topics)/idleEvery.Seconds(), idleEvery.Seconds(), producing, consuming)}
}

// live sends messages to the topics in turn at an even rate, and receives and acknowledges them. The subscriptions are
// replicated. It says with a line when its figure begins, so that the processes of all clusters can be looked at.
func live() []result {
	consuming := pulsar.ConsumerOptions{ReplicateSubscriptionState: true}
	return []result{evenly(*rate, *warmSeconds, pulsar.ProducerOptions{}, consuming)}
}

// evenly sends so many single messages a second, in all, to the topics in turn, and receives and acknowledges them, first
// for warm seconds that do not count. Latencies are from the call that sends to the arrival.
func evenly(
	perSecond, warm float64, producing pulsar.ProducerOptions, consuming pulsar.ConsumerOptions,
) result {
	client := connect()
	defer client.Close()
	arrived := make(chan pulsar.ConsumerMessage, *topics)
	consuming.MessageChannel = arrived
	opened := openAll(client, producing, consuming)
	send := func(seconds float64) []time.Duration {
		total := max(1, int(seconds*perSecond))
		took := make([]time.Duration, 0, total)
		began := time.Now()
		var arrival sync.WaitGroup
		arrival.Add(1)
		go func() {
			defer arrival.Done()
			for len(took) < total {
				select {
				case message := <-arrived:
					check(message.Consumer.Ack(message.Message))
					// What a run before left unacknowledged is not this run's.
					if sent := time.Unix(0, int64(binary.BigEndian.Uint64(message.Payload()))); !sent.Before(began) {
						took = append(took, time.Since(sent))
					}
				case <-silent():
					check(fmt.Errorf("%d of %d messages came", len(took), total))
				}
			}
		}()
		for number := 0; number < total; {
			due := min(total, int(time.Since(began).Seconds()*perSecond))
			for ; number < due; number++ {
				payload := make([]byte, *size)
				binary.BigEndian.PutUint64(payload, uint64(time.Now().UnixNano()))
				opened[number%len(opened)].producer.SendAsync(
					context.Background(), &pulsar.ProducerMessage{Payload: payload}, confirmed,
				)
			}
			time.Sleep(tick)
		}
		arrival.Wait()
		return took
	}
	send(warm)
	if *work == "live" {
		fmt.Println("began")
	}
	var took []time.Duration
	measured := timed(func() { took = send(*partSeconds) })
	measured.Count = len(took)
	return measured.with(took)
}
