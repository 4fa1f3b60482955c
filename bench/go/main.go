// One measurement with the official Go client, against any broker: see bench/client_program.py, which takes the same
// arguments and prints the same line of JSON.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
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
	// Linux counts CPU time in them, for every program.
	ticksPerSecond = 100
)

var (
	url     = flag.String("url", "", "pulsar://HOST:PORT")
	work    = flag.String("work", "", "publish, consume, one-by-one, sustained, lag, many, long, idle, live, spread, fan-out, connections, reconnect")
	topic   = flag.String("topic", "", "the topic, or the beginning of the names of some")
	size    = flag.Int("size", 100, "bytes of a message")
	batched = flag.Bool("batched", false, "producer batches of up to 1,000 messages or 128 KiB")
	count   = flag.Int("count", 0, "messages, or connections, or clients of reconnect")
	rate    = flag.Float64("rate", 0, "messages a second, of lag and live")
	delayMs = flag.Int("batch-delay-ms", 10, "how long a producer gathers a batch")
	pid     = flag.Int("pid", 0, "the broker's process, whose CPU time is measured too; 0 if it is not known")

	topics        = flag.Int("topics", 0, "topics at once, of many, long, idle, live and spread")
	parts         = flag.Int("parts", 1, "how many figures, of long and reconnect")
	partSeconds   = flag.Float64("part-seconds", 0, "how long each figure takes, of long, idle and live")
	warmSeconds   = flag.Float64("warm-seconds", 0, "how long messages are sent before the figure, of live")
	subscriptions = flag.Int("subscriptions", 1, "of fan-out")
	consumers     = flag.Int("consumers", 1, "of each subscription, of fan-out")
	kindName      = flag.String("kind", "exclusive", "exclusive, shared or key-shared, of fan-out")
)

// result is what is printed; what a kind of work does not measure is left out.
type result struct {
	Work             string   `json:"work,omitempty"`
	Count            int      `json:"count"`
	Seconds          float64  `json:"seconds"`
	CPUSeconds       float64  `json:"cpu_seconds"`
	BrokerCPUSeconds *float64 `json:"broker_cpu_seconds,omitempty"`
	BrokerBytes      int64    `json:"broker_bytes,omitempty"`
	P50Ms            float64  `json:"p50_ms,omitempty"`
	P99Ms            float64  `json:"p99_ms,omitempty"`
}

func main() {
	flag.Parse()
	works := map[string]func() []result{
		"publish": one(publish), "consume": one(consume), "one-by-one": one(oneByOne), "sustained": one(sustained), "lag": one(lag),
		"many": many, "long": long, "idle": idle, "live": live, "spread": spread, "fan-out": fanOut,
		"reconnect": reconnect,
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
	for _, each := range run() {
		check(json.NewEncoder(os.Stdout).Encode(each))
	}
}

func one(work func() result) func() []result {
	return func() []result { return []result{work()} }
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

// connections opens so many, each with a producer and a consumer, says so with a line, and holds them until its input ends.
func connections() {
	const topics = 10
	inParallel(*count, func(number int) {
		client := connect()
		name := fmt.Sprintf("%s-%d", *topic, number%topics)
		_, err := client.CreateProducer(pulsar.ProducerOptions{Topic: name})
		check(err)
		_, err = client.Subscribe(pulsar.ConsumerOptions{Topic: name, SubscriptionName: "idle", Type: pulsar.Shared})
		check(err)
	})
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// inParallel does something for each number from 0 to count - 1, a few at once.
func inParallel(count int, do func(number int)) {
	const atOnce = 16
	var working sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		working.Add(1)
		go func() {
			defer working.Done()
			for number := int(next.Add(1) - 1); number < count; number = int(next.Add(1) - 1) {
				do(number)
			}
		}()
	}
	working.Wait()
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

// silent fires once, for the whole program, long after any measurement has ended.
func silent() <-chan time.Time {
	silentOnce.Do(func() {
		silentAfter = time.After(silence + time.Duration(float64(*parts)**partSeconds*float64(time.Second)))
	})
	return silentAfter
}

func confirmed(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) }

func timed(do func()) result {
	before, cpu, began := brokerUsage(), cpuSeconds(), time.Now()
	do()
	measured := result{Count: *count, Seconds: time.Since(began).Seconds(), CPUSeconds: cpuSeconds() - cpu}
	if after := brokerUsage(); before != nil && after != nil {
		used := after.cpuSeconds - before.cpuSeconds
		measured.BrokerCPUSeconds, measured.BrokerBytes = &used, after.bytes
	}
	return measured
}

// usage is the CPU time that all threads of a process have taken so far, and its resident memory.
type usage struct {
	cpuSeconds float64
	bytes      int64
}

// brokerUsage reads it from Linux, of the process that --pid names; nil without one, and on other systems.
func brokerUsage() *usage {
	if *pid == 0 {
		return nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", *pid))
	if os.IsNotExist(err) {
		return nil
	}
	check(err)
	// The name stands in brackets and may have anything in it.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	number := func(at int) int64 {
		value, err := strconv.ParseInt(fields[at], 10, 64)
		check(err)
		return value
	}
	return &usage{float64(number(11)+number(12)) / ticksPerSecond, number(21) * int64(os.Getpagesize())}
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
