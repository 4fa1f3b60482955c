package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// traffic is a producer that sends all the time and a consumer that acknowledges all: program traffic TOPIC SERVICE_URL. On standard
// output: "+ NUMBER" for what was confirmed, "- NUMBER" for what was received, "! ERROR". A line of standard input ends the producing; the
// program ends when all that was confirmed is received. Acknowledgements are sent late, as on a busy machine.
func traffic(topic, serviceURL string) {
	client, err := newClient(serviceURL, pulsar.ClientOptions{})
	if err != nil {
		panic(err)
	}
	of := side{client: client, topic: topic}
	late := &pulsar.AckGroupingOptions{MaxSize: 1000, MaxTime: 500 * time.Millisecond}
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{ReplicateSubscriptionState: true, AckGroupingOptions: late})
	if err != nil {
		panic(err)
	}
	producer, err := of.producer(pulsar.ProducerOptions{SendTimeout: -1})
	if err != nil {
		panic(err)
	}
	var lock sync.Mutex
	missing, stopping := map[int]bool{}, false // what was confirmed and not received is true, what was received first is false
	say := func(kind string, what any) { fmt.Println(kind, what) }
	go func() {
		for number := 0; ; number++ {
			lock.Lock()
			ended := stopping
			lock.Unlock()
			if ended {
				return
			}
			message := &pulsar.ProducerMessage{Payload: []byte(fmt.Sprint(number))}
			if _, err := producer.Send(context.Background(), message); err != nil {
				say("!", err)
				continue
			}
			lock.Lock()
			if _, received := missing[number]; !received {
				missing[number] = true
			}
			lock.Unlock()
			say("+", number)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		lock.Lock()
		stopping = true
		lock.Unlock()
	}()
	for {
		if message := next(consumer, 500*time.Millisecond); message != nil {
			number, _ := strconv.Atoi(string(message.Payload()))
			lock.Lock()
			missing[number] = false
			lock.Unlock()
			say("-", number)
			_ = consumer.Ack(message)
			continue
		}
		lock.Lock()
		open := !stopping
		for _, each := range missing {
			open = open || each
		}
		lock.Unlock()
		if !open {
			client.Close()
			return
		}
	}
}
