package main

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
)

var saramaCodecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

func saramaWrite(_ context.Context, bootstrap []string, topic, codec string, records []record) error {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Compression = saramaCodecs[codec]
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		return err
	}
	messages := make([]*sarama.ProducerMessage, 0, len(records))
	for _, r := range records {
		value := sarama.ByteEncoder(r.value)
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Partition: r.partition, Value: value})
	}
	return errors.Join(producer.SendMessages(messages), producer.Close())
}

// The claims of all partitions run side by side: what they get goes through one channel.
type saramaMember struct {
	messages chan *sarama.ConsumerMessage
}

func (saramaMember) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (saramaMember) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (member saramaMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			select {
			case member.messages <- message:
				session.MarkMessage(message, "")
			case <-session.Context().Done():
				return nil
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

// It speaks the protocol of Kafka 2.1 here, as it does where nobody tells it which.
func saramaRead(ctx context.Context, bootstrap []string, topic, group string, count int, got func(record)) error {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	consumer, err := sarama.NewConsumerGroup(bootstrap, group, config)
	if err != nil {
		return err
	}
	member := saramaMember{make(chan *sarama.ConsumerMessage)}
	reading, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		var failed error
		for failed == nil && reading.Err() == nil {
			failed = consumer.Consume(reading, []string{topic}, member)
		}
		ended <- failed
	}()
	for ; count > 0 && ctx.Err() == nil; count-- {
		select {
		case message := <-member.messages:
			got(record{message.Partition, message.Value})
		case err := <-ended:
			stop()
			return errors.Join(err, consumer.Close())
		case <-ctx.Done():
		}
	}
	stop()
	return errors.Join(ctx.Err(), <-ended, consumer.Close())
}
