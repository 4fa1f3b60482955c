package main

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Every type of subscription, what comes again, dead letters, retries, readers, table views, patterns.
func subscriptions() []named {
	return []named{
		{"exclusive", exclusive}, {"failover", failover}, {"shared", shared}, {"other-type", otherType},
		{"key-shared-auto-split", autoSplit}, {"key-shared-sticky", sticky}, {"cumulative-ack", cumulative},
		{"batch-index-ack", batchIndex}, {"negative-ack", negative}, {"dead-letter", deadLetter}, {"retry-topic", retryTopic},
		{"seek", seek}, {"unsubscribe", unsubscribe}, {"reader", reader}, {"table-view", tableView}, {"regex", regex},
		{"last-message-ids", lastIDs},
	}
}

func exclusive(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return nil, err
	}
	if err := of.send("a", "b", "c"); err != nil {
		return nil, err
	}
	got := texts(consumer, 2)
	consumer.Close()
	again, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	left, extra := texts(again, 1), more(again)
	// At the end: a broker that turns somebody away may send again what it was about to send.
	_, busy := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	return seen{"busy": kind(busy), "got": got, "left": left, "more": extra}, nil
}

func failover(of side) (any, error) {
	first, err := of.consumer("sub", pulsar.Failover, pulsar.ConsumerOptions{Name: "a"})
	if err != nil {
		return nil, err
	}
	second, err := of.consumer("sub", pulsar.Failover, pulsar.ConsumerOptions{Name: "b"})
	if err != nil {
		return nil, err
	}
	if err := of.send("1", "2", "3"); err != nil {
		return nil, err
	}
	got, idle := texts(first, 2), !more(second)
	first.Close()
	return seen{"first": got, "idle": idle, "second": texts(second, 1)}, nil
}

func shared(of side) (any, error) {
	options := pulsar.ConsumerOptions{ReceiverQueueSize: 1}
	first, err := of.consumer("sub", pulsar.Shared, options)
	if err != nil {
		return nil, err
	}
	second, err := of.consumer("sub", pulsar.Shared, options)
	if err != nil {
		return nil, err
	}
	if err := of.send("1", "2", "3", "4", "5", "6"); err != nil {
		return nil, err
	}
	got := append(texts(first, 2), texts(second, 2)...)
	first.Close()
	got = append(got, texts(second, 2)...)
	return seen{"got": sorted(got), "cumulative": kind(second.AckIDCumulative(pulsar.EarliestMessageID()))}, nil
}

func otherType(of side) (any, error) {
	if _, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{}); err != nil {
		return nil, err
	}
	saw := seen{}
	for name, each := range map[string]pulsar.SubscriptionType{
		"Exclusive": pulsar.Exclusive, "Failover": pulsar.Failover, "KeyShared": pulsar.KeyShared,
	} {
		_, err := of.consumer("sub", each, pulsar.ConsumerOptions{})
		saw[name] = kind(err)
	}
	return saw, nil
}

func autoSplit(of side) (any, error) {
	var consumers []pulsar.Consumer
	for number := range 3 {
		consumer, err := of.consumer("sub", pulsar.KeyShared, pulsar.ConsumerOptions{Name: fmt.Sprint("c", number)})
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, consumer)
	}
	owners, order, err := byKey(of, consumers, 60)
	one := true
	for _, each := range owners {
		one = one && len(each) == 1
	}
	return seen{"one consumer a key": one, "order": order}, err
}

func sticky(of side) (any, error) {
	var consumers []pulsar.Consumer
	for number := range 2 {
		policy, err := pulsar.NewKeySharedPolicySticky([]int{number * 32768, number*32768 + 32767})
		if err != nil {
			return nil, err
		}
		consumer, err := of.consumer("sub", pulsar.KeyShared, pulsar.ConsumerOptions{KeySharedPolicy: policy})
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, consumer)
	}
	overlapping, _ := pulsar.NewKeySharedPolicySticky([]int{5, 10})
	_, refused := of.consumer("sub", pulsar.KeyShared, pulsar.ConsumerOptions{KeySharedPolicy: overlapping})
	owners, order, err := byKey(of, consumers, 40)
	return seen{"owners": owners, "order": order, "overlapping": kind(refused)}, err
}

// byKey sends messages of ten keys, and says which consumers got each key, and in which order.
func byKey(of side, consumers []pulsar.Consumer, count int) (map[string]map[int]bool, map[string][]string, error) {
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return nil, nil, err
	}
	defer producer.Close()
	for number := range count {
		message := &pulsar.ProducerMessage{Key: fmt.Sprint("key-", number%10), Payload: []byte(fmt.Sprint(number))}
		if _, err := producer.Send(context.Background(), message); err != nil {
			return nil, nil, err
		}
	}
	owners, order, got := map[string]map[int]bool{}, map[string][]string{}, 0
	for end := time.Now().Add(15 * time.Second); got < count && time.Now().Before(end); {
		for number, consumer := range consumers {
			message := next(consumer, 20*time.Millisecond)
			if message == nil {
				continue
			}
			if owners[message.Key()] == nil {
				owners[message.Key()] = map[int]bool{}
			}
			owners[message.Key()][number] = true
			order[message.Key()] = append(order[message.Key()], string(message.Payload()))
			_ = consumer.Ack(message)
			got++
		}
	}
	return owners, order, nil
}

func cumulative(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{AckWithResponse: true})
	if err != nil {
		return nil, err
	}
	if err := of.send("1", "2", "3", "4"); err != nil {
		return nil, err
	}
	next(consumer, 10*time.Second)
	next(consumer, 10*time.Second)
	acked := consumer.AckCumulative(next(consumer, 10*time.Second))
	consumer.Close()
	again, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	return seen{"acked": kind(acked), "left": texts(again, 1), "more": more(again)}, nil
}

func batchIndex(of side) (any, error) {
	options := pulsar.ConsumerOptions{EnableBatchIndexAcknowledgment: true, AckWithResponse: true}
	consumer, err := of.consumer("sub", pulsar.Shared, options)
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{BatchingMaxMessages: 4, BatchingMaxPublishDelay: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	for number := range 4 {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))}, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	}
	if err := producer.Flush(); err != nil {
		return nil, err
	}
	var indexes []int32
	for number := range 4 {
		message := next(consumer, 10*time.Second)
		indexes = append(indexes, message.ID().BatchIdx())
		if number%2 == 1 {
			if err := consumer.Ack(message); err != nil {
				return nil, err
			}
		}
	}
	consumer.Close()
	again, err := of.consumer("sub", pulsar.Shared, options)
	if err != nil {
		return nil, err
	}
	return seen{"indexes": indexes, "left": texts(again, 2), "more": more(again)}, nil
}

func negative(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{NackRedeliveryDelay: 200 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	if err := of.send("a"); err != nil {
		return nil, err
	}
	var counts []uint32
	for range 3 {
		message := next(consumer, 10*time.Second)
		counts = append(counts, message.RedeliveryCount())
		consumer.Nack(message)
	}
	return counts, nil
}

func deadLetter(of side) (any, error) {
	dead := of.topic + "-dead"
	letters, err := of.consumer("all", pulsar.Exclusive, pulsar.ConsumerOptions{Topic: dead})
	if err != nil {
		return nil, err
	}
	consumer, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{
		NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ:                 &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: dead},
	})
	if err != nil {
		return nil, err
	}
	if err := of.send("bad"); err != nil {
		return nil, err
	}
	count := 0
	for message := next(consumer, 2*time.Second); message != nil; message = next(consumer, 2*time.Second) {
		count++
		consumer.Nack(message)
	}
	letter := next(letters, 10*time.Second)
	if letter == nil {
		return seen{"seen": count, "letter": nil}, nil
	}
	return seen{"seen": count, "letter": string(letter.Payload()), "properties": len(letter.Properties())}, nil
}

func retryTopic(of side) (any, error) {
	dead := of.topic + "-sub-DLQ"
	consumer, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{
		RetryEnable: true,
		DLQ:         &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: dead, RetryLetterTopic: of.topic + "-sub-RETRY"},
	})
	if err != nil {
		return nil, err
	}
	letters, err := of.consumer("all", pulsar.Exclusive, pulsar.ConsumerOptions{Topic: dead})
	if err != nil {
		return nil, err
	}
	if err := of.send("later"); err != nil {
		return nil, err
	}
	var retries []string
	for message := next(consumer, 3*time.Second); message != nil; message = next(consumer, 3*time.Second) {
		retries = append(retries, message.Properties()["RECONSUMETIMES"])
		consumer.ReconsumeLater(message, 100*time.Millisecond)
	}
	return seen{"retries": retries, "letter": texts(letters, 1)}, nil
}

func seek(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return nil, err
	}
	var ids []pulsar.MessageID
	for number := range 5 {
		id, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))})
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	all := texts(consumer, 5)
	if err := consumer.Seek(ids[2]); err != nil {
		return nil, err
	}
	after := texts(consumer, 2)
	if err := consumer.SeekByTime(time.Now().Add(10 * time.Second)); err != nil {
		return nil, err
	}
	return seen{"all": all, "after": after, "more": more(consumer)}, nil
}

func unsubscribe(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	second, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	busy := consumer.Unsubscribe()
	second.Close()
	return seen{"busy": kind(busy), "alone": kind(consumer.Unsubscribe())}, nil
}

func reader(of side) (any, error) {
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return nil, err
	}
	var ids []pulsar.MessageID
	for number := range 4 {
		id, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))})
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	saw := seen{}
	for name, options := range map[string]pulsar.ReaderOptions{
		"earliest":  {StartMessageID: pulsar.EarliestMessageID()},
		"after":     {StartMessageID: ids[1]},
		"inclusive": {StartMessageID: ids[1], StartMessageIDInclusive: true},
		"latest":    {StartMessageID: pulsar.LatestMessageID()},
		"last":      {StartMessageID: pulsar.LatestMessageID(), StartMessageIDInclusive: true},
	} {
		options.Topic = of.topic
		each, err := of.client.CreateReader(options)
		if err != nil {
			return nil, err
		}
		got := []string{}
		for each.HasNext() {
			message, err := each.Next(context.Background())
			if err != nil {
				return nil, err
			}
			got = append(got, string(message.Payload()))
		}
		saw[name] = got
		each.Close()
	}
	return saw, nil
}

func tableView(of side) (any, error) {
	producer, err := of.producer(pulsar.ProducerOptions{Schema: pulsar.NewStringSchema(nil)})
	if err != nil {
		return nil, err
	}
	for _, pair := range [][2]string{{"a", "1"}, {"b", "2"}, {"a", "3"}} {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Key: pair[0], Value: pair[1]}); err != nil {
			return nil, err
		}
	}
	var kindOfValue *string
	view, err := of.client.CreateTableView(pulsar.TableViewOptions{
		Topic: of.topic, Schema: pulsar.NewStringSchema(nil), SchemaValueType: reflect.TypeOf(kindOfValue),
	})
	if err != nil {
		return nil, err
	}
	defer view.Close()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if each, ok := view.Get("a").(*string); ok && *each == "3" && view.Size() == 2 {
			break
		}
	}
	saw := seen{}
	for key, value := range view.Entries() {
		saw[key] = value
	}
	return saw, nil
}

func regex(of side) (any, error) {
	for _, name := range []string{"-x", "-y"} {
		producer, err := of.producer(pulsar.ProducerOptions{Topic: of.topic + name})
		if err != nil {
			return nil, err
		}
		producer.Close()
	}
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{
		TopicsPattern: of.topic + "-[xyz]", AutoDiscoveryPeriod: time.Second,
	})
	if err != nil {
		return nil, err
	}
	var got []string
	for _, name := range []string{"-x", "-y", "-z", "-other"} {
		there := side{of.client, of.serviceURL, of.adminURL, of.topic + name}
		if err := there.send(name); err != nil {
			return nil, err
		}
	}
	got = append(got, texts(consumer, 3)...)
	return seen{"got": sorted(got), "more": more(consumer)}, nil
}

func lastIDs(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	if err := of.send("1", "2"); err != nil {
		return nil, err
	}
	ids, err := consumer.GetLastMessageIDs()
	if err != nil {
		return nil, err
	}
	got := texts(consumer, 1)
	last := next(consumer, 10*time.Second)
	return seen{"count": len(ids), "same": ids[0].EntryID() == last.ID().EntryID(), "topic": ids[0].Topic() == of.topic, "got": got}, nil
}
