// Command franz has franz-go do what the other clients of the bench do, and prints what it took as JSON.
//
// franz-go is at its defaults (idempotent, acks=all, 50,000 records buffered) apart from what every client is given:
// linger, the size of a batch, no compression unless asked for (its default is snappy). Its partitioner stays on a
// partition until about a batch has gone there, 64 KiB by default: the same rule with the size of a batch.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	work        = flag.String("work", "kept", "kept, unkept, alone, paced or transactions")
	bootstrap   = flag.String("bootstrap", "", "address of a broker")
	topic       = flag.String("topic", "", "where to")
	records     = flag.Int("records", 0, "records that are measured")
	warmUp      = flag.Int("warm-up", 0, "records before that")
	linger      = flag.Int("linger-ms", 5, "")
	batchSize   = flag.Int("batch-size", 128*1024, "")
	compression = flag.String("compression", "none", "none, gzip, lz4 or zstd")
	valuesFile  = flag.String("values-file", "", "one value a line; else all alike")
	valueSize   = flag.Int("value-size", 100, "bytes of each value, without a file")
	rate        = flag.Int("rate", 0, "records a second, paced")
)

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func codec() kgo.CompressionCodec {
	switch *compression {
	case "gzip":
		return kgo.GzipCompression()
	case "lz4":
		return kgo.Lz4Compression()
	case "zstd":
		return kgo.ZstdCompression()
	}
	return kgo.NoCompression()
}

func values() [][]byte {
	if *valuesFile == "" {
		value := make([]byte, *valueSize)
		for i := range value {
			value[i] = 'x'
		}
		return [][]byte{value}
	}
	file, err := os.Open(*valuesFile)
	if err != nil {
		fail(err)
	}
	defer file.Close()
	var found [][]byte
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		found = append(found, append([]byte(nil), lines.Bytes()...))
	}
	if lines.Err() != nil {
		fail(lines.Err())
	}
	return found
}

func cpu() (user, system float64) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return float64(usage.Utime.Sec) + float64(usage.Utime.Usec)/1e6, float64(usage.Stime.Sec) + float64(usage.Stime.Usec)/1e6
}

// A timer of the kernel: Go rounds its own timers up to milliseconds while it waits for the network. Latency counts from
// the scheduled time, as in bench/pacing.py.
func atRate(count int, send func(number int, scheduled time.Time)) {
	interval := time.Second / time.Duration(*rate)
	const monotonicClock = 1
	descriptor, _, failure := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, monotonicClock, syscall.O_CLOEXEC, 0)
	if failure != 0 {
		fail(failure)
	}
	defer syscall.Close(int(descriptor))
	began := time.Now()
	each := syscall.NsecToTimespec(interval.Nanoseconds())
	setting := struct{ every, first syscall.Timespec }{each, each}
	_, _, failure = syscall.Syscall6(
		syscall.SYS_TIMERFD_SETTIME, descriptor, 0, uintptr(unsafe.Pointer(&setting)), 0, 0, 0)
	if failure != 0 {
		fail(failure)
	}
	for number := 0; number < count; {
		var expirations [8]byte
		if _, err := syscall.Read(int(descriptor), expirations[:]); err != nil {
			if err == syscall.EINTR {
				continue
			}
			fail(err)
		}
		for number < count {
			scheduled := began.Add(time.Duration(number+1) * interval)
			if time.Since(scheduled) < 0 {
				break
			}
			send(number, scheduled)
			number++
		}
	}
}

func newClient(more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(strings.Split(*bootstrap, ",")...),
		kgo.DefaultProduceTopic(*topic),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(time.Duration(*linger) * time.Millisecond),
		kgo.ProducerBatchMaxBytes(int32(*batchSize)),
		kgo.ProducerBatchCompression(codec()),
		kgo.RecordPartitioner(kgo.UniformBytesPartitioner(*batchSize, true, true, nil)),
	}, more...)...)
	if err != nil {
		fail(err)
	}
	return client
}

func main() {
	flag.Parse()
	if *work == "transactions" {
		transactions()
		return
	}
	client := newClient()
	defer client.Close()
	ctx := context.Background()
	all := values()
	var failed, offsets atomic.Int64

	withOffset := func(record *kgo.Record, err error) {
		if err != nil {
			failed.Add(1)
			return
		}
		offsets.Add(record.Offset)
	}
	failuresOnly := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.Add(1)
		}
	}
	var taken []int64
	send := func(count int) {
		switch *work {
		case "alone":
			taken = make([]int64, 0, count)
			for i := 0; i < count; i++ {
				began := time.Now()
				if err := client.ProduceSync(ctx, kgo.SliceRecord(all[i%len(all)])).FirstErr(); err != nil {
					fail(err)
				}
				taken = append(taken, time.Since(began).Nanoseconds())
			}
			return
		case "paced":
			taken = make([]int64, count)
			atRate(count, func(number int, scheduled time.Time) {
				client.Produce(ctx, kgo.SliceRecord(all[number%len(all)]), func(_ *kgo.Record, err error) {
					taken[number] = time.Since(scheduled).Nanoseconds()
					failuresOnly(nil, err)
				})
			})
		case "unkept":
			for i, at := 0, 0; i < count; i++ {
				client.Produce(ctx, kgo.SliceRecord(all[at]), failuresOnly)
				if at++; at == len(all) {
					at = 0
				}
			}
		default:
			for i, at := 0, 0; i < count; i++ {
				client.Produce(ctx, kgo.SliceRecord(all[at]), withOffset)
				if at++; at == len(all) {
					at = 0
				}
			}
		}
		if err := client.Flush(ctx); err != nil {
			fail(err)
		}
	}

	send(*warmUp)
	offsets.Store(0)
	userBefore, systemBefore := cpu()
	began := time.Now()
	send(*records)
	elapsed := time.Since(began).Seconds()
	user, system := cpu()
	if failed.Load() > 0 {
		fail(fmt.Errorf("%d records failed", failed.Load()))
	}
	result := map[string]any{
		"records": *records,
		"elapsed": elapsed,
		"user":    user - userBefore,
		"system":  system - systemBefore,
		"sent":    *warmUp + *records,
		"offsets": offsets.Load(),
	}
	if len(taken) > 0 {
		sort.Slice(taken, func(a, b int) bool { return taken[a] < taken[b] })
		rank := func(permille int) float64 { return float64(taken[(len(taken)*permille+999)/1000-1]) / 1000 }
		result["p50_us"], result["p99_us"] = rank(500), rank(990)
		result["p99.9_us"], result["max_us"] = rank(999), rank(1000)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		fail(err)
	}
}
