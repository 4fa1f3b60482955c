package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

// What producers send: all that a message carries, batches, compression, chunks, encryption, access modes; transactions.
func messaging() []named {
	return []named{
		{"message", message}, {"batches", batches}, {"compression", compression}, {"delayed", delayed}, {"chunks", chunks},
		{"too-large", tooLarge}, {"encryption", encryption}, {"access-modes", accessModes}, {"producer-names", producerNames},
		{"transactions", transactions}, {"wrong-names", wrongNames}, {"partitions", partitions},
	}
}

func message(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{Name: "p", DisableBatching: true})
	if err != nil {
		return nil, err
	}
	sequence := int64(41)
	for _, each := range []*pulsar.ProducerMessage{
		{Payload: []byte("v"), Key: "k", OrderingKey: "o", Properties: map[string]string{"a": "b"}, EventTime: time.UnixMilli(77), SequenceID: &sequence},
		{Payload: nil, Properties: map[string]string{"a": "b"}}, // without properties this client does not read what is empty
	} {
		if _, err := producer.Send(context.Background(), each); err != nil {
			return nil, err
		}
	}
	var got []seen
	for range 2 {
		each := next(consumer, 10*time.Second)
		got = append(got, seen{
			"key": each.Key(), "ordering": each.OrderingKey(), "properties": each.Properties(), "event": each.EventTime().UnixMilli(),
			"producer": each.ProducerName(), "payload": string(each.Payload()), "replicated": each.IsReplicated(), "count": each.RedeliveryCount(),
			"batch": each.ID().BatchIdx(), "partition": each.ID().PartitionIdx(), "index": each.Index() != nil, "topic": each.Topic() == of.topic,
		})
	}
	return seen{"messages": got, "last": producer.LastSequenceID()}, nil
}

func batches(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	saw := seen{}
	for name, builder := range map[string]pulsar.BatcherBuilderType{"default": pulsar.DefaultBatchBuilder, "by key": pulsar.KeyBasedBatchBuilder} {
		producer, err := of.producer(pulsar.ProducerOptions{BatcherBuilderType: builder, BatchingMaxPublishDelay: time.Second})
		if err != nil {
			return nil, err
		}
		for number := range 20 {
			each := &pulsar.ProducerMessage{Key: fmt.Sprint("k", number%2), Payload: []byte(fmt.Sprint(number))}
			producer.SendAsync(context.Background(), each, func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
		}
		if err := producer.Flush(); err != nil {
			return nil, err
		}
		byKey := map[string][]string{}
		for range 20 {
			each := next(consumer, 10*time.Second)
			byKey[each.Key()] = append(byKey[each.Key()], string(each.Payload()))
			_ = consumer.Ack(each)
		}
		saw[name] = byKey
		producer.Close()
	}
	return saw, nil
}

func compression(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	content, saw := bytes.Repeat([]byte("abc"), 10_000), seen{}
	for name, each := range map[string]pulsar.CompressionType{
		"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
	} {
		producer, err := of.producer(pulsar.ProducerOptions{CompressionType: each})
		if err != nil {
			return nil, err
		}
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: content}); err != nil {
			return nil, err
		}
		saw[name] = bytes.Equal(next(consumer, 10*time.Second).Payload(), content)
		producer.Close()
	}
	return saw, nil
}

func delayed(of side) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Shared, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{})
	if err != nil {
		return nil, err
	}
	for _, each := range []*pulsar.ProducerMessage{{Payload: []byte("late"), DeliverAfter: 2 * time.Second}, {Payload: []byte("now")}} {
		if _, err := producer.Send(context.Background(), each); err != nil {
			return nil, err
		}
	}
	return texts(consumer, 2), nil
}

func chunks(of side) (any, error) {
	content := make([]byte, 12*1024*1024)
	_, _ = rand.Read(content)
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true, EnableChunking: true})
	if err != nil {
		return nil, err
	}
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: content}); err != nil {
		return nil, err
	}
	each := next(consumer, 20*time.Second)
	if each == nil {
		return "nothing", nil
	}
	_ = consumer.Ack(each)
	return seen{"same": bytes.Equal(content, each.Payload()), "more": more(consumer)}, nil
}

func tooLarge(of side) (any, error) {
	producer, err := of.producer(pulsar.ProducerOptions{DisableBatching: true})
	if err != nil {
		return nil, err
	}
	_, large := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, 5*1024*1024+1)})
	_, after := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: make([]byte, 1)})
	return seen{"large": kind(large), "after": kind(after)}, nil
}

func encryption(of side) (any, error) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "keys")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(directory)
	open, secret := filepath.Join(directory, "public.pem"), filepath.Join(directory, "private.pem")
	for name, block := range map[string]*pem.Block{
		open: {Type: "PUBLIC KEY", Bytes: public}, secret: {Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, err
		}
	}
	keys := crypto.NewFileKeyReader(open, secret)
	consumer, err := of.consumer("with", pulsar.Exclusive, pulsar.ConsumerOptions{
		Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys, ConsumerCryptoFailureAction: crypto.ConsumerCryptoFailureActionFail},
	})
	if err != nil {
		return nil, err
	}
	blind, err := of.consumer("without", pulsar.Exclusive, pulsar.ConsumerOptions{})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{
		Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"key"}, ProducerCryptoFailureAction: crypto.ProducerCryptoFailureActionFail},
	})
	if err != nil {
		return nil, err
	}
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("secret")}); err != nil {
		return nil, err
	}
	return seen{"with": texts(consumer, 1), "without": more(blind)}, nil
}

func accessModes(of side) (any, error) {
	saw := seen{}
	only, err := of.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	if err != nil {
		return nil, err
	}
	_, err = of.producer(pulsar.ProducerOptions{})
	saw["shared"] = kind(err)
	_, err = of.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeExclusive})
	saw["exclusive"] = kind(err)
	only.Close()
	_, err = of.producer(pulsar.ProducerOptions{ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive})
	saw["free"] = kind(err)
	return saw, nil
}

func producerNames(of side) (any, error) {
	first, err := of.producer(pulsar.ProducerOptions{Name: "same"})
	if err != nil {
		return nil, err
	}
	_, err = of.producer(pulsar.ProducerOptions{Name: "same"})
	return seen{"second": kind(err), "name": first.Name()}, nil
}

func transactions(of side) (any, error) {
	client, err := newClient(of.serviceURL, pulsar.ClientOptions{EnableTransaction: true})
	if err != nil {
		return seen{"client": kind(err)}, nil
	}
	defer client.Close()
	_, err = client.NewTransaction(5 * time.Second)
	return seen{"refused": err != nil}, nil
}

func wrongNames(of side) (any, error) {
	saw := seen{}
	for _, name := range []string{"persistent://public/nowhere/t", "persistent://nobody/default/t", "bad://a/b/c"} {
		_, err := of.producer(pulsar.ProducerOptions{Topic: name})
		saw[name] = kind(err)
	}
	return saw, nil
}

func partitions(of side) (any, error) {
	names, err := of.client.TopicPartitions(of.topic)
	return seen{"names": len(names), "same": len(names) == 1 && names[0] == of.topic}, err
}
