package main

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

var kafkaGoCodecs = map[string]kafka.Compression{
	"none":   0,
	"gzip":   kafka.Gzip,
	"snappy": kafka.Snappy,
	"lz4":    kafka.Lz4,
	"zstd":   kafka.Zstd,
}

// The partition stands in the key: a Writer takes none with a message.
var byKey = kafka.BalancerFunc(func(message kafka.Message, _ ...int) int {
	partition, err := strconv.Atoi(string(message.Key))
	if err != nil {
		panic(err)
	}
	return partition
})

func kafkaGoWrite(ctx context.Context, bootstrap []string, topic, codec string, records []record) error {
	writer := &kafka.Writer{
		Addr:         kafka.TCP(bootstrap...),
		Topic:        topic,
		Balancer:     byKey,
		RequiredAcks: kafka.RequireAll,
		Compression:  kafkaGoCodecs[codec],
	}
	messages := make([]kafka.Message, 0, len(records))
	for _, r := range records {
		messages = append(messages, kafka.Message{Key: strconv.AppendInt(nil, int64(r.partition), 10), Value: r.value})
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		return err
	}
	return writer.Close()
}

func kafkaGoRead(ctx context.Context, bootstrap []string, topic, group string, count int, got func(record)) error {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers:     bootstrap,
		Topic:       topic,
		GroupID:     group,
		StartOffset: kafka.FirstOffset,
		// Closing waits for it.
		MaxWait: 100 * time.Millisecond,
	})
	last := map[int]kafka.Message{}
	for ; count > 0; count-- {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		got(record{int32(message.Partition), message.Value})
		last[message.Partition] = message
	}
	for _, message := range last {
		if err := reader.CommitMessages(ctx, message); err != nil {
			return err
		}
	}
	return reader.Close()
}
