package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The share of transactions that are aborted, and copied again.
const aborted = 0.1

// copyTopic copies records as a member of a group, with the offsets in each transaction, until SIGTERM.
func copyTopic(bootstrap []string, source, target, group, id, size, least string) error {
	records, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(least, 64)
	if err != nil {
		return err
	}
	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pause := time.Duration(seconds * float64(time.Second))
	for {
		session, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(bootstrap...),
			kgo.TransactionalID(id),
			kgo.TransactionTimeout(30*time.Second),
			kgo.ConsumeTopics(source),
			kgo.ConsumerGroup(group),
			kgo.SessionTimeout(6*time.Second),
			kgo.HeartbeatInterval(time.Second),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		)
		if err != nil {
			return err
		}
		err = copyIn(stopped, session, target, records, pause)
		session.Close()
		// A session that could not reach a broker cannot continue; another error is a wrong response.
		var unreachable net.Error
		if !errors.As(err, &unreachable) && !errors.Is(err, io.EOF) {
			return err
		}
		fmt.Println("continues in a new session:", err)
		time.Sleep(100 * time.Millisecond)
	}
}

func copyIn(stopped context.Context, session *kgo.GroupTransactSession, target string, records int, pause time.Duration) error {
	for {
		began := time.Now()
		fetches := session.PollRecords(stopped, records)
		if stopped.Err() != nil {
			return nil
		}
		for _, failure := range fetches.Errors() {
			// The session of the group has ended, and the client joins the group again.
			var ended *kgo.ErrGroupSession
			if !errors.As(failure.Err, &ended) {
				return fmt.Errorf("fetch: %w", failure.Err)
			}
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := transact(session, fetches, target); err != nil {
			return err
		}
		time.Sleep(pause - time.Since(began))
	}
}

// transact ends a transaction also after the signal: a cancelled context would leave the session in an unknown state.
func transact(session *kgo.GroupTransactSession, fetches kgo.Fetches, target string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	if err := session.Begin(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	fetches.EachRecord(func(r *kgo.Record) {
		session.Produce(ctx, &kgo.Record{Topic: target, Key: r.Key, Value: r.Value}, promise.Promise())
	})
	failed := promise.Err()
	committed, err := session.End(ctx, failed == nil && rand.Float64() >= aborted)
	if err != nil {
		return fmt.Errorf("end: %w", err)
	}
	if !committed {
		fmt.Println("aborted, and copied again:", failed)
	}
	return nil
}
