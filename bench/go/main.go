// One measurement with the official Go client, against any broker: see bench/client_program.py, which takes the same
// arguments and prints the same line of JSON.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	batchMessagesMax = 1000
	batchBytesMax    = 128 * 1024
	pendingBytesMax  = 32 * 1024 * 1024
	pendingMax       = 20000
	pendingMin       = 16
	numberBytes      = 8
	// Messages of a lag measurement are sent in groups at this distance.
	tick = 2 * time.Millisecond
	// Without a message for so long the measurement has failed.
	silence = 60 * time.Second
)

var (
	url     = flag.String("url", "", "pulsar://HOST:PORT")
	work    = flag.String("work", "", "publish, consume, one-by-one, sustained, lag, many-send, many-receive, many-acknowledge, connections")
	topic   = flag.String("topic", "", "the topic, or the beginning of the names of some")
	size    = flag.Int("size", 100, "bytes of a message")
	batched = flag.Bool("batched", false, "producer batches of up to 1,000 messages or 128 KiB")
	count   = flag.Int("count", 0, "messages, or connections")
	rate    = flag.Float64("rate", 0, "messages a second, of lag")
	delayMs = flag.Int("batch-delay-ms", 10, "how long a producer gathers a batch")
	topics  = flag.Int("topics", 0, "topics at once, of many-send, many-receive and many-acknowledge")
)

// result is what is printed; what a kind of work does not measure is left out.
type result struct {
	Count      int     `json:"count"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
	P50Ms      float64 `json:"p50_ms,omitempty"`
	P99Ms      float64 `json:"p99_ms,omitempty"`
}

func main() {
	flag.Parse()
	works := map[string]func() result{
		"publish": publish, "consume": consume, "one-by-one": oneByOne, "sustained": sustained, "lag": lag,
		"many-send": many, "many-receive": many, "many-acknowledge": many,
	}
	if *work == "connections" {
		connections()
		return
	}
	run, known := works[*work]
	if !known {
		fmt.Fprintln(os.Stderr, "unknown work:", *work)
		os.Exit(2)
	}
	check(json.NewEncoder(os.Stdout).Encode(run()))
}

func publish() result {
	client := connect()
	defer client.Close()
	producer := produce(client)
	payload := make([]byte, *size)
	return timed(func() {
		for range *count {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload}, confirmed)
		}
		check(producer.FlushWithCtx(context.Background()))
	})
}

func consume() result {
	client := connect()
	defer client.Close()
	var consumer pulsar.Consumer
	measured := timed(func() {
		consumer = subscribe(client)
		for range *count {
			check(consumer.Ack(receive(consumer)))
		}
	})
	consumer.Close()
	return measured
}

func oneByOne() result {
	client := connect()
	defer client.Close()
	producer := produce(client)
	payload := make([]byte, *size)
	took := make([]time.Duration, *count)
	measured := timed(func() {
		for index := range took {
			began := time.Now()
			_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: payload})
			check(err)
			took[index] = time.Since(began)
		}
	})
	return measured.with(took)
}

// sustained publishes and consumes at once, as fast as it goes.
func sustained() result {
	client := connect()
	defer client.Close()
	producer, consumer := produce(client), subscribe(client)
	defer consumer.Close()
	payload := make([]byte, *size)
	return timed(func() {
		var arrival sync.WaitGroup
		arrival.Add(1)
		go func() {
			defer arrival.Done()
			for range *count {
				check(consumer.Ack(receive(consumer)))
			}
		}()
		for range *count {
			producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload}, confirmed)
		}
		check(producer.FlushWithCtx(context.Background()))
		arrival.Wait()
	})
}

// lag is from the call that sends a message to its arrival, at an even rate.
func lag() result {
	client := connect()
	defer client.Close()
	producer, consumer := produce(client), subscribe(client)
	defer consumer.Close()
	sent, took := make([]time.Time, *count), make([]time.Duration, *count)
	measured := timed(func() {
		var arrival sync.WaitGroup
		arrival.Add(1)
		go func() {
			defer arrival.Done()
			for range *count {
				message := receive(consumer)
				number := binary.BigEndian.Uint64(message.Payload())
				took[number] = time.Since(sent[number])
				check(consumer.Ack(message))
			}
		}()
		began := time.Now()
		for number := 0; number < *count; {
			due := min(*count, int(time.Since(began).Seconds()**rate))
			for ; number < due; number++ {
				payload := make([]byte, *size)
				binary.BigEndian.PutUint64(payload[:numberBytes], uint64(number))
				sent[number] = time.Now()
				producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: payload}, confirmed)
			}
			time.Sleep(tick)
		}
		arrival.Wait()
	})
	return measured.with(took)
}

// many measures rounds of many topics at once, over one connection. In a round, a topic sends a message and waits for
// its receipt. With many-receive it also receives the message, with many-acknowledge it also acknowledges it.
func many() result {
	client := connect()
	defer client.Close()
	payload := make([]byte, *size)
	rounds := max(1, *count / *topics)
	producers, consumers := make([]pulsar.Producer, *topics), make([]pulsar.Consumer, *topics)
	for number := range *topics {
		name := fmt.Sprintf("%s-%d", *topic, number)
		producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: name, DisableBatching: true})
		check(err)
		consumer, err := client.Subscribe(pulsar.ConsumerOptions{
			Topic: name, SubscriptionName: "many", Type: pulsar.Shared, AckWithResponse: true,
		})
		check(err)
		producers[number], consumers[number] = producer, consumer
	}
	took := make([]time.Duration, rounds**topics)
	measured := timed(func() {
		var all sync.WaitGroup
		for number := range *topics {
			all.Add(1)
			go func() {
				defer all.Done()
				for round := range rounds {
					began := time.Now()
					_, err := producers[number].Send(context.Background(), &pulsar.ProducerMessage{Payload: payload})
					check(err)
					if *work != "many-send" {
						message := receive(consumers[number])
						if *work == "many-acknowledge" {
							check(consumers[number].Ack(message))
						}
					}
					took[number*rounds+round] = time.Since(began)
				}
			}()
		}
		all.Wait()
	})
	measured.Count = len(took)
	return measured.with(took)
}

// connections opens so many, each with a producer and a consumer, says so with a line, and holds them until its input ends.
func connections() {
	const topics, atOnce = 10, 16
	var opening sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		opening.Add(1)
		go func() {
			defer opening.Done()
			for number := next.Add(1) - 1; number < int64(*count); number = next.Add(1) - 1 {
				client := connect()
				name := fmt.Sprintf("%s-%d", *topic, number%topics)
				_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: name})
				check(err)
				_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: name, SubscriptionName: "idle", Type: pulsar.Shared})
				check(err)
			}
		}()
	}
	opening.Wait()
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func connect() pulsar.Client {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	client, err := pulsar.NewClient(pulsar.ClientOptions{URL: *url, Logger: log.NewLoggerWithLogrus(quiet)})
	check(err)
	return client
}

func produce(client pulsar.Client) pulsar.Producer {
	producer, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic:                   *topic,
		DisableBatching:         !*batched,
		BatchingMaxMessages:     batchMessagesMax,
		BatchingMaxSize:         batchBytesMax,
		BatchingMaxPublishDelay: time.Duration(*delayMs) * time.Millisecond,
		MaxPendingMessages:      queue(),
	})
	check(err)
	return producer
}

func subscribe(client pulsar.Client) pulsar.Consumer {
	consumer, err := client.Subscribe(pulsar.ConsumerOptions{
		Topic:                       *topic,
		SubscriptionName:            fmt.Sprintf("run-%d", time.Now().UnixNano()),
		Type:                        pulsar.Exclusive,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		ReceiverQueueSize:           queue(),
	})
	check(err)
	return consumer
}

// queue is how many messages may be on their way, by their size.
func queue() int {
	return max(pendingMin, min(pendingMax, pendingBytesMax / *size))
}

func receive(consumer pulsar.Consumer) pulsar.Message {
	// A context with a deadline for each message would cost as much as the message.
	select {
	case message := <-consumer.Chan():
		return message.Message
	case <-silent():
		check(fmt.Errorf("no message for %s", silence))
		return nil
	}
}

var (
	silentOnce  sync.Once
	silentAfter <-chan time.Time
)

// silent fires once, for the whole program: no measurement takes as long.
func silent() <-chan time.Time {
	silentOnce.Do(func() { silentAfter = time.After(silence) })
	return silentAfter
}

func confirmed(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) }

func timed(do func()) result {
	cpu, began := cpuSeconds(), time.Now()
	do()
	return result{Count: *count, Seconds: time.Since(began).Seconds(), CPUSeconds: cpuSeconds() - cpu}
}

// with adds what took how long, by nearest rank.
func (measured result) with(took []time.Duration) result {
	sort.Slice(took, func(one, other int) bool { return took[one] < took[other] })
	rank := func(percent int) float64 {
		return took[(len(took)*percent+99)/100-1].Seconds() * 1000
	}
	measured.P50Ms, measured.P99Ms = rank(50), rank(99)
	return measured
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return seconds(usage.Utime) + seconds(usage.Stime)
}

func seconds(value syscall.Timeval) float64 { return float64(value.Sec) + float64(value.Usec)/1e6 }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
