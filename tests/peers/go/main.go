// What the official Go client sees of a broker: program SERVICE_URL ADMIN_URL RUN [CASE…]. Each case is a line of JSON on standard
// output, {"case", "saw"} or {"case", "error"}; nothing in it depends on the cluster, so that the lines of two brokers can be compared.
// RUN makes the names of topics differ from those of other runs. How it is called for traffic: see there.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	plog "github.com/apache/pulsar-client-go/pulsar/log"
)

const (
	caseTime = 60 * time.Second
	atOnce   = 6
)

// side is what a case needs of the broker; its topic is its own.
type side struct {
	client     pulsar.Client
	serviceURL string
	adminURL   string
	topic      string
}

type seen map[string]any

type named struct {
	name string
	see  func(side) (any, error)
}

func main() {
	if len(os.Args) == 4 && os.Args[1] == "traffic" {
		traffic(os.Args[2], os.Args[3])
		return
	}
	serviceURL, adminURL, run := os.Args[1], os.Args[2], os.Args[3]
	wanted := map[string]bool{}
	for _, name := range os.Args[4:] {
		wanted[name] = true
	}
	client, err := newClient(serviceURL, pulsar.ClientOptions{})
	if err != nil {
		panic(err)
	}
	cases := append(append(messaging(), subscriptions()...), schemas()...)
	ends := make([]chan seen, len(cases))
	room := make(chan struct{}, atOnce)
	for at, each := range cases {
		ends[at] = make(chan seen, 1)
		if len(wanted) > 0 && !wanted[each.name] {
			close(ends[at])
			continue
		}
		go func() {
			room <- struct{}{}
			defer func() { <-room }()
			ends[at] <- see(each, side{client, serviceURL, adminURL, "persistent://public/default/go-" + each.name + "-" + run})
		}()
	}
	for at := range cases {
		if line, ok := <-ends[at]; ok {
			text, _ := json.Marshal(line)
			fmt.Println(string(text))
		}
	}
}

func see(each named, of side) seen {
	done := make(chan seen, 1)
	go func() {
		defer func() { // a message that did not come, most of all: the other cases go on
			if failed := recover(); failed != nil {
				fmt.Fprintln(os.Stderr, each.name, failed)
				done <- seen{"case": each.name, "error": fmt.Sprint(failed)}
			}
		}()
		saw, err := each.see(of)
		if err != nil {
			fmt.Fprintln(os.Stderr, each.name, err)
			done <- seen{"case": each.name, "error": kind(err)}
			return
		}
		done <- seen{"case": each.name, "saw": saw}
	}()
	select {
	case line := <-done:
		return line
	case <-time.After(caseTime):
		return seen{"case": each.name, "error": fmt.Sprintf("no end within %s", caseTime)}
	}
}

func newClient(serviceURL string, options pulsar.ClientOptions) (pulsar.Client, error) {
	options.URL = serviceURL
	options.OperationTimeout = 10 * time.Second
	options.Logger = plog.NewLoggerWithSlog(slog.New(slog.NewTextHandler(io.Discard, nil)))
	return pulsar.NewClient(options)
}

// kind is the client's name of an error, without what differs from one broker to the next.
func kind(err error) string {
	if err == nil {
		return ""
	}
	var known *pulsar.Error
	if errors.As(err, &known) {
		return fmt.Sprintf("%T %d", known, known.Result())
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "deadline exceeded"
	}
	for _, word := range []string{
		"ConsumerBusy", "ProducerBusy", "ProducerFenced", "IncompatibleSchema", "NotAllowedError", "TopicNotFound", "MetadataError",
		"ConsumerAssignError", "ServiceNotReady", "PersistenceError", "UnsupportedVersionError", "TopicTerminated", "AuthorizationError",
		"TransactionCoordinatorNotFound", "InvalidTopicName", "UnknownError", "message size exceeds",
	} {
		if contains(err.Error(), word) {
			return word
		}
	}
	return fmt.Sprintf("%T", err)
}

func contains(text, word string) bool {
	for at := 0; at+len(word) <= len(text); at++ {
		if text[at:at+len(word)] == word {
			return true
		}
	}
	return false
}

func (of side) producer(options pulsar.ProducerOptions) (pulsar.Producer, error) {
	if options.Topic == "" {
		options.Topic = of.topic
	}
	return of.client.CreateProducer(options)
}

func (of side) consumer(subscription string, kind pulsar.SubscriptionType, options pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	if options.Topic == "" && options.TopicsPattern == "" {
		options.Topic = of.topic
	}
	options.SubscriptionName = subscription
	options.Type = kind
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	return of.client.Subscribe(options)
}

func (of side) send(texts ...string) error {
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, text := range texts {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(text)}); err != nil {
			return err
		}
	}
	return nil
}

// next is the next message; nil if none comes in time.
func next(consumer pulsar.Consumer, within time.Duration) pulsar.Message {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	message, err := consumer.Receive(ctx)
	if err != nil {
		return nil
	}
	return message
}

// texts are the next messages, acknowledged.
func texts(consumer pulsar.Consumer, count int) []string {
	var got []string
	for range count {
		message := next(consumer, 10*time.Second)
		if message == nil {
			return append(got, "nothing")
		}
		got = append(got, string(message.Payload()))
		_ = consumer.Ack(message)
	}
	return got
}

func more(consumer pulsar.Consumer) bool {
	return next(consumer, 400*time.Millisecond) != nil
}

func sorted(texts []string) []string {
	sort.Strings(texts)
	return texts
}
