package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	partitions          = flag.Int("partitions", 4, "of the topic")
	recordsATransaction = flag.Int("records-a-transaction", 1, "")
	producers           = flag.Int("producers", 1, "clients, each of which has its transactions in turn")
)

// Transactions of each client in turn, the clients at the same time. All records of a transaction have one partition.
func transactions() {
	ctx := context.Background()
	value := values()[0]
	clients := make([]*kgo.Client, *producers)
	for i := range clients {
		clients[i] = newClient(
			kgo.TransactionalID(fmt.Sprintf("%s-%d", *topic, i)),
			kgo.RecordPartitioner(kgo.ManualPartitioner()),
		)
		defer clients[i].Close()
	}
	noFailure := func(_ *kgo.Record, err error) {
		if err != nil {
			fail(err)
		}
	}
	send := func(client *kgo.Client, count int) {
		for i := 0; i < count; i++ {
			if err := client.BeginTransaction(); err != nil {
				fail(err)
			}
			for j := 0; j < *recordsATransaction; j++ {
				client.Produce(ctx, &kgo.Record{Partition: int32(i % *partitions), Value: value}, noFailure)
			}
			if err := client.Flush(ctx); err != nil {
				fail(err)
			}
			if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
				fail(err)
			}
		}
	}
	sendAll := func(count int) int {
		each := count / *recordsATransaction / *producers
		var group sync.WaitGroup
		for _, client := range clients {
			group.Add(1)
			go func() {
				defer group.Done()
				send(client, each)
			}()
		}
		group.Wait()
		return each * *producers
	}

	warmed := sendAll(*warmUp)
	userBefore, systemBefore := cpu()
	began := time.Now()
	ended := sendAll(*records)
	elapsed := time.Since(began).Seconds()
	user, system := cpu()
	err := json.NewEncoder(os.Stdout).Encode(map[string]any{
		"records":      ended * *recordsATransaction,
		"transactions": ended,
		"elapsed":      elapsed,
		"user":         user - userBefore,
		"system":       system - systemBefore,
		"sent":         (warmed + ended) * *recordsATransaction,
		"markers":      warmed + ended,
	})
	if err != nil {
		fail(err)
	}
}
