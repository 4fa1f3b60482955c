// The work of clients that all connect at once, as after a failover, for bench/connections.py.
//
// They speak the protocol themselves. The official client cannot choose the address that it connects from, and a worker
// takes 10,000 connections from one address at most; and it waits longer after each attempt that failed.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	rawTopics = 10
	// So many clients connect from each address of 127.0.0.0/8.
	rawOfAddress = 100
	rawPermits   = 1000
	// So many clients at most wait for the answer to their first command; the others have not connected yet. A broker's
	// queue of connections has about a thousand places. Linux lets a client that finds it full wait for up to a minute,
	// and these waits would be most of what is measured.
	rawConnecting = 512
	// A client that was refused connects again after this time.
	rawPause = 100 * time.Millisecond
	// A client that is not served within this time has failed.
	rawPatience = 5 * time.Minute
	// A broker is at rest when it takes less than this part of a core.
	restCores = 0.1
	restLook  = time.Second
	restMax   = time.Minute
	// What stands before the checksum of a message.
	checksumMagic = 0x0e01
)

// Types of commands. Each is also the number of the command's field.
const (
	typeConnect         = 2
	typeConnected       = 3
	typeSubscribe       = 4
	typeProducer        = 5
	typeSend            = 6
	typeSendReceipt     = 7
	typeSendError       = 8
	typeMessage         = 9
	typeAck             = 10
	typeFlow            = 11
	typeSuccess         = 13
	typeError           = 14
	typeCloseProducer   = 15
	typeCloseConsumer   = 16
	typeProducerSuccess = 17
	typePing            = 18
	typePong            = 19
	typeLookup          = 23
	typeLookupResponse  = 24
)

// Ids of requests, the same on each connection.
const (
	requestFindProducer = iota + 1
	requestFindConsumer
	requestProducer
	requestConsumer
)

const (
	protocolVersion = 19
	lookupConnect   = 1
	typeShared      = 1
)

var connecting = make(chan struct{}, rawConnecting)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// reconnect has all clients connect at once, and does so several times. A client is served when a publish of its
// producer is confirmed and its consumer is subscribed. The first time does not count, for it makes the topics and the
// subscriptions. In between all connections are closed, and the broker comes to rest.
func reconnect() []result {
	clients := make([]*rawClient, *count)
	for number := range clients {
		address := number / rawOfAddress
		clients[number] = &rawClient{
			topic: fmt.Sprintf("%s-%d", *topic, number%rawTopics),
			from:  net.IPv4(127, 1, byte(address/250), byte(address%250+1)),
		}
	}
	var measured []result
	for part := range *parts + 1 {
		each := connectAll(clients)
		if part > 0 {
			each.Work = fmt.Sprintf("part-%d", part)
			measured = append(measured, each)
		}
	}
	return measured
}

// connectAll measures from the moment when all clients want to connect until each is served. Then it closes them all.
func connectAll(clients []*rawClient) result {
	began := time.Now()
	gate := make(chan struct{})
	took := make([]time.Duration, len(clients))
	var served, ended sync.WaitGroup
	var closing atomic.Bool
	served.Add(len(clients))
	ended.Add(len(clients))
	for number, each := range clients {
		go func() {
			defer ended.Done()
			<-gate
			each.stayConnected(&closing, func() {
				took[number] = time.Since(began)
				served.Done()
			})
		}()
	}
	measured := timed(func() {
		began = time.Now()
		close(gate)
		served.Wait()
	})
	waitForRest()
	closing.Store(true)
	for _, each := range clients {
		each.connection.Close()
	}
	ended.Wait()
	waitForRest()
	return measured.with(took)
}

// waitForRest returns once the broker takes hardly any CPU time.
func waitForRest() {
	for until := time.Now().Add(restMax); time.Now().Before(until); {
		before := brokerUsage()
		time.Sleep(restLook)
		after := brokerUsage()
		if before == nil || after == nil || after.cpuSeconds-before.cpuSeconds < restCores*restLook.Seconds() {
			return
		}
	}
}

// rawClient is a client with one connection, a producer and a Shared consumer. It acknowledges all that it receives.
type rawClient struct {
	topic      string
	from       net.IP
	connection net.Conn
	// The name that the broker gave its producer.
	producer string
	// How often the producer was opened; also the number of its next message.
	epoch uint64

	confirmed, subscribed, served bool
}

// stayConnected connects, again and again until the client is served, then answers the broker until all are closed.
func (c *rawClient) stayConnected(closing *atomic.Bool, whenServed func()) {
	until := time.Now().Add(rawPatience)
	c.served = false
	for {
		err := c.connect(until, whenServed)
		if c.served {
			if !closing.Load() {
				check(fmt.Errorf("a client lost its connection after it was served: %w", err))
			}
			return
		}
		if time.Now().After(until) {
			check(fmt.Errorf("a client was not served within %s: %w", rawPatience, err))
		}
		time.Sleep(rawPause)
	}
}

// connect serves one connection until it ends, and returns why it did.
func (c *rawClient) connect(until time.Time, whenServed func()) error {
	connecting <- struct{}{}
	connected := sync.OnceFunc(func() { <-connecting })
	defer connected()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: c.from}, Deadline: until}
	connection, err := dialer.Dial("tcp", strings.TrimPrefix(*url, "pulsar://"))
	if err != nil {
		return err
	}
	defer connection.Close()
	c.connection, c.confirmed, c.subscribed = connection, false, false
	if err := connection.SetReadDeadline(until); err != nil {
		return err
	}
	hello := encoded(nil).text(1, "bench").number(4, protocolVersion)
	if _, err := connection.Write(frame(typeConnect, hello, nil)); err != nil {
		return err
	}
	reader := bufio.NewReader(connection)
	for {
		kind, command, err := readCommand(reader)
		if err != nil {
			return err
		}
		if kind == typeConnected {
			connected()
		}
		answer, err := c.answer(kind, command)
		if err != nil {
			return err
		}
		if len(answer) > 0 {
			if _, err := connection.Write(answer); err != nil {
				return err
			}
		}
		if c.confirmed && c.subscribed && !c.served {
			if err := connection.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			c.served = true
			whenServed()
		}
	}
}

// answer returns the frames that a client sends next, once a command has come.
func (c *rawClient) answer(kind uint64, command decoded) ([]byte, error) {
	switch kind {
	case typeConnected:
		// As the official client, a producer and a consumer each look their topic up.
		return append(c.lookup(requestFindProducer), c.lookup(requestFindConsumer)...), nil
	case typeLookupResponse:
		if command[3].number != lookupConnect {
			return nil, fmt.Errorf("a look-up was answered with %d: %s", command[3].number, command[6].bytes)
		}
		if command[4].number == requestFindProducer {
			return c.openProducer(), nil
		}
		return c.subscribe(), nil
	case typeProducerSuccess:
		c.producer = string(command[2].bytes)
		return c.send(), nil
	case typeSuccess:
		c.subscribed = true
		return frame(typeFlow, encoded(nil).number(1, 1).number(2, rawPermits), nil), nil
	case typeSendReceipt:
		c.confirmed = true
	case typeMessage:
		// Consumer, individual, message id.
		ack := encoded(nil).number(1, command[1].number).number(2, 0).data(3, command[2].bytes)
		return frame(typeAck, ack, nil), nil
	case typePing:
		return frame(typePong, nil, nil), nil
	case typeError:
		return nil, fmt.Errorf("request %d failed: %s", command[1].number, command[3].bytes)
	case typeSendError:
		return nil, fmt.Errorf("a publish failed: %s", command[4].bytes)
	case typeCloseProducer, typeCloseConsumer:
		return nil, errors.New("the broker closed a producer or a consumer")
	}
	return nil, nil
}

func (c *rawClient) lookup(request uint64) []byte {
	return frame(typeLookup, encoded(nil).text(1, c.topic).number(2, request), nil)
}

func (c *rawClient) openProducer() []byte {
	command := encoded(nil).text(1, c.topic).number(2, 1).number(3, requestProducer)
	if c.producer != "" {
		// The name is the broker's, and not the user's.
		command = command.text(4, c.producer).number(9, 0)
	}
	c.epoch++
	return frame(typeProducer, command.number(8, c.epoch), nil)
}

func (c *rawClient) subscribe() []byte {
	command := encoded(nil).text(1, c.topic).text(2, "reconnect").number(3, typeShared).number(4, 1)
	return frame(typeSubscribe, command.number(5, requestConsumer), nil)
}

func (c *rawClient) send() []byte {
	now := uint64(time.Now().UnixMilli())
	metadata := encoded(nil).text(1, c.producer).number(2, c.epoch).number(3, now)
	checked := binary.BigEndian.AppendUint32(nil, uint32(len(metadata)))
	checked = append(append(checked, metadata...), make([]byte, *size)...)
	payload := binary.BigEndian.AppendUint16(nil, checksumMagic)
	payload = binary.BigEndian.AppendUint32(payload, crc32.Checksum(checked, castagnoli))
	return frame(typeSend, encoded(nil).number(1, 1).number(2, c.epoch), append(payload, checked...))
}

// encoded is a message of protobuf that grows by a field at a time.
type encoded []byte

func (e encoded) number(field protowire.Number, value uint64) encoded {
	return protowire.AppendVarint(protowire.AppendTag(e, field, protowire.VarintType), value)
}

func (e encoded) data(field protowire.Number, value []byte) encoded {
	return protowire.AppendBytes(protowire.AppendTag(e, field, protowire.BytesType), value)
}

func (e encoded) text(field protowire.Number, value string) encoded {
	return e.data(field, []byte(value))
}

// frame is a command as it is sent, with what follows it.
func frame(kind uint64, command encoded, payload []byte) []byte {
	whole := encoded(nil).number(1, kind).data(protowire.Number(kind), command)
	framed := binary.BigEndian.AppendUint32(nil, uint32(4+len(whole)+len(payload)))
	framed = binary.BigEndian.AppendUint32(framed, uint32(len(whole)))
	return append(append(framed, whole...), payload...)
}

// value is what a field of a message has, a number or bytes.
type value struct {
	number uint64
	bytes  []byte
}

// decoded has the fields of a message by number; of a repeated field, the last.
type decoded map[protowire.Number]value

func decode(data []byte) (decoded, error) {
	found := decoded{}
	for len(data) > 0 {
		field, kind, length := protowire.ConsumeTag(data)
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		data = data[length:]
		var each value
		switch kind {
		case protowire.VarintType:
			each.number, length = protowire.ConsumeVarint(data)
		case protowire.BytesType:
			each.bytes, length = protowire.ConsumeBytes(data)
		default:
			length = protowire.ConsumeFieldValue(field, kind, data)
		}
		if length < 0 {
			return nil, protowire.ParseError(length)
		}
		data = data[length:]
		found[field] = each
	}
	return found, nil
}

// readCommand returns the next command's type and fields. It passes over a message's payload.
func readCommand(from io.Reader) (uint64, decoded, error) {
	var sizes [8]byte
	if _, err := io.ReadFull(from, sizes[:]); err != nil {
		return 0, nil, err
	}
	total, size := binary.BigEndian.Uint32(sizes[:4]), binary.BigEndian.Uint32(sizes[4:])
	if total < 4 || size > total-4 {
		return 0, nil, fmt.Errorf("a frame of %d bytes has a command of %d", total, size)
	}
	data := make([]byte, total-4)
	if _, err := io.ReadFull(from, data); err != nil {
		return 0, nil, err
	}
	whole, err := decode(data[:size])
	if err != nil {
		return 0, nil, err
	}
	kind := whole[1].number
	command, err := decode(whole[protowire.Number(kind)].bytes)
	return kind, command, err
}
