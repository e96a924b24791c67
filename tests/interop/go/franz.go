package main

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"
)

var franzCodecs = map[string]kgo.CompressionCodec{
	"none":   kgo.NoCompression(),
	"gzip":   kgo.GzipCompression(),
	"snappy": kgo.SnappyCompression(),
	"lz4":    kgo.Lz4Compression(),
	"zstd":   kgo.ZstdCompression(),
}

func franzWrite(ctx context.Context, bootstrap []string, topic, codec string, records []record) error {
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(franzCodecs[codec]),
	)
	if err != nil {
		return err
	}
	defer producer.Close()
	batch := make([]*kgo.Record, 0, len(records))
	for _, r := range records {
		batch = append(batch, &kgo.Record{Topic: topic, Partition: r.partition, Value: r.value})
	}
	return producer.ProduceSync(ctx, batch...).FirstErr()
}

func franzRead(ctx context.Context, bootstrap []string, topic, group string, count int, got func(record)) error {
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumerGroup(group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer consumer.Close()
	for count > 0 {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(r *kgo.Record) { got(record{r.Partition, r.Value}) })
		count -= fetches.NumRecords()
	}
	return consumer.CommitUncommittedOffsets(ctx)
}
