package metadata

import (
	"context"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/railhop/railhop/internal/xfer"
)

// etcdMessage is the longest message, Mooncake's number.
const etcdMessage = 32 << 20

// etcdStore is etcd's third interface. Keys have no lease.
type etcdStore struct{ client *clientv3.Client }

func newEtcd(endpoints string) (*etcdStore, error) {
	all := strings.FieldsFunc(endpoints, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
	if len(all) == 0 {
		return nil, fmt.Errorf("metadata: etcd %q: no address: %w", endpoints, xfer.ErrInvalidArgument)
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: all, DialTimeout: callTimeout, MaxCallSendMsgSize: etcdMessage, MaxCallRecvMsgSize: etcdMessage, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("metadata: etcd %q: %w: %w", endpoints, xfer.ErrMetadata, err)
	}
	return &etcdStore{client}, nil
}

func (s *etcdStore) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := s.client.Get(ctx, key)
	if err == nil && len(r.Kvs) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, &Error{"get", key, err}
	}
	return r.Kvs[0].Value, nil
}

func (s *etcdStore) Put(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := s.client.Put(ctx, key, string(value)); err != nil {
		return &Error{"put", key, err}
	}
	return nil
}

func (s *etcdStore) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := s.client.Delete(ctx, key)
	if err == nil && r.Deleted == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return &Error{"delete", key, err}
	}
	return nil
}

func (s *etcdStore) Newline() bool { return true }

func (s *etcdStore) Close() error { return s.client.Close() }
