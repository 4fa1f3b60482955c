package main

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	first  = `{"type":"record","name":"R","fields":[{"name":"Name","type":"string"},{"name":"Age","type":"int"}]}`
	second = `{"type":"record","name":"R","fields":[{"name":"Name","type":"string"},{"name":"Age","type":"int"},{"name":"Town","type":"string","default":"Rome"}]}`
	other  = `{"type":"record","name":"R","fields":[{"name":"Name","type":"double"}]}`
)

type record struct {
	Name string
	Age  int
}

// Schemas of the kinds that this client has: what is written is read; what does not fit is refused.
func schemas() []named {
	return []named{
		{"primitives", primitives},
		{"avro", func(of side) (any, error) {
			return records(of, pulsar.NewAvroSchema(first, nil), pulsar.NewAvroSchema(second, nil), pulsar.NewAvroSchema(other, nil))
		}},
		{"json", func(of side) (any, error) {
			return records(of, pulsar.NewJSONSchema(first, nil), pulsar.NewJSONSchema(second, nil), pulsar.NewJSONSchema(other, nil))
		}},
		{"another-schema", another},
	}
}

func primitives(of side) (any, error) {
	saw := seen{}
	text, small, large, double := "é", int8(-3), int64(5_000_000_000), 2.5
	for name, each := range map[string]struct {
		schema      pulsar.Schema
		value, into any
	}{
		"string": {pulsar.NewStringSchema(nil), text, new(*string)},
		"int8":   {pulsar.NewInt8Schema(nil), small, new(int8)},
		"int64":  {pulsar.NewInt64Schema(nil), large, new(int64)},
		"double": {pulsar.NewDoubleSchema(nil), double, new(float64)},
	} {
		there := side{of.client, of.serviceURL, of.adminURL, of.topic + "-" + name}
		consumer, err := there.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{Schema: each.schema})
		if err != nil {
			return nil, err
		}
		producer, err := there.producer(pulsar.ProducerOptions{Schema: each.schema})
		if err != nil {
			return nil, err
		}
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: each.value}); err != nil {
			return nil, err
		}
		if err := next(consumer, 10*time.Second).GetSchemaValue(each.into); err != nil {
			return nil, err
		}
		saw[name] = fmt.Sprint(reflect.Indirect(reflect.ValueOf(each.into).Elem()).Interface())
	}
	return saw, nil
}

func records(of side, old, evolved, wrong pulsar.Schema) (any, error) {
	consumer, err := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{Schema: old})
	if err != nil {
		return nil, err
	}
	producer, err := of.producer(pulsar.ProducerOptions{Schema: old})
	if err != nil {
		return nil, err
	}
	if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: &record{"Ann", 7}}); err != nil {
		return nil, err
	}
	var got record
	message := next(consumer, 10*time.Second)
	if err := message.GetSchemaValue(&got); err != nil {
		return nil, err
	}
	_, evolving := of.producer(pulsar.ProducerOptions{Schema: evolved})
	_, producing := of.producer(pulsar.ProducerOptions{Schema: wrong})
	_, consuming := of.consumer("other", pulsar.Exclusive, pulsar.ConsumerOptions{Schema: wrong})
	return seen{
		"got": got, "version": len(message.SchemaVersion()), "evolved": kind(evolving), "wrong producer": kind(producing),
		"wrong consumer": kind(consuming),
	}, nil
}

func another(of side) (any, error) {
	if _, err := of.producer(pulsar.ProducerOptions{Schema: pulsar.NewStringSchema(nil)}); err != nil {
		return nil, err
	}
	_, number := of.producer(pulsar.ProducerOptions{Schema: pulsar.NewInt32Schema(nil)})
	_, consumer := of.consumer("sub", pulsar.Exclusive, pulsar.ConsumerOptions{Schema: pulsar.NewInt32Schema(nil)})
	_, plain := of.producer(pulsar.ProducerOptions{})
	return seen{"int producer": kind(number), "int consumer": kind(consumer), "bytes producer": kind(plain)}, nil
}
