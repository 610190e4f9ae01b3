// A server of airport-go with the tables of `bench.servers million`, to compare with in `python -m bench live`.
//
// It reads the rows from an Arrow IPC file, which is its only argument, keeps them in memory, and prints its port.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"

	airport "github.com/hugr-lab/airport-go"
	"github.com/hugr-lab/airport-go/catalog"
)

const maxMessage = 256 << 20

// rows is a table in memory.
type rows struct {
	name    string
	schema  *arrow.Schema
	batches []arrow.RecordBatch
}

func (t *rows) Name() string    { return t.name }
func (t *rows) Comment() string { return "" }

func (t *rows) ArrowSchema(columns []string) *arrow.Schema {
	return catalog.ProjectSchema(t.schema, columns)
}

func (t *rows) Scan(_ context.Context, _ *catalog.ScanOptions) (array.RecordReader, error) {
	return array.NewRecordReader(t.schema, t.batches)
}

// sink counts inserted rows and discards them.
type sink struct{ rows }

func (t *sink) Insert(_ context.Context, given array.RecordReader, _ *catalog.DMLOptions) (*catalog.DMLResult, error) {
	var count int64
	for given.Next() {
		count += given.RecordBatch().NumRows()
	}
	return &catalog.DMLResult{AffectedRows: count}, given.Err()
}

// echo is a scalar function that returns its argument.
type echo struct{}

func (echo) Name() string    { return "echo" }
func (echo) Comment() string { return "" }

func (echo) Signature() catalog.FunctionSignature {
	number := arrow.PrimitiveTypes.Int64
	return catalog.FunctionSignature{Parameters: []arrow.DataType{number}, ReturnType: number}
}

func (echo) Execute(_ context.Context, input arrow.RecordBatch) (arrow.Array, error) {
	column := input.Column(0)
	column.Retain()
	return column, nil
}

func read(path string) (*arrow.Schema, []arrow.RecordBatch, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	reader, err := ipc.NewFileReader(file, ipc.WithAllocator(memory.DefaultAllocator))
	if err != nil {
		return nil, nil, err
	}
	defer reader.Close()
	batches := make([]arrow.RecordBatch, 0, reader.NumRecords())
	for number := range reader.NumRecords() {
		batch, err := reader.RecordBatch(number)
		if err != nil {
			return nil, nil, err
		}
		batch.Retain()
		batches = append(batches, batch)
	}
	return reader.Schema(), batches, nil
}

func serve(path string) error {
	schema, batches, err := read(path)
	if err != nil {
		return err
	}
	ten := []arrow.RecordBatch{batches[0].NewSlice(0, 10)}
	made, err := airport.NewCatalogBuilder().
		Schema("s").
		Table(&rows{"big", schema, batches}).
		Table(&rows{"ten", schema, ten}).
		Table(&sink{rows{"sink", schema, nil}}).
		ScalarFunc(echo{}).
		Build()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	level := slog.LevelError
	config := airport.ServerConfig{
		Catalog: made, Address: listener.Addr().String(), LogLevel: &level, MaxMessageSize: maxMessage,
	}
	server := grpc.NewServer(airport.ServerOptions(config)...)
	if err := airport.NewServer(server, config); err != nil {
		return err
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	return server.Serve(listener)
}

func main() {
	if err := serve(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
