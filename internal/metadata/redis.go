package metadata

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/railhop/railhop/internal/wire"
	"github.com/railhop/railhop/internal/xfer"
)

// redisStore is a Redis server: SET, GET and DEL.
type redisStore struct{ client *redis.Client }

func newRedis(address string, opts Options) (*redisStore, error) {
	port := opts.DefaultPort
	if port == 0 {
		port = 12001
	}
	host, p, err := wire.ParseServer(address, uint16(port))
	if err != nil {
		return nil, fmt.Errorf("metadata: redis: %w: %w", xfer.ErrInvalidArgument, err)
	}
	return &redisStore{redis.NewClient(&redis.Options{
		Addr:     net.JoinHostPort(host, strconv.Itoa(int(p))),
		Username: opts.RedisUsername, Password: opts.RedisPassword, DB: opts.RedisDB,
		DialTimeout: callTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout,
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})}, nil
}

func (s *redisStore) Get(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	b, err := s.client.Get(ctx, key).Bytes()
	if errors.Is(err, redis.Nil) {
		err = ErrNotFound
	}
	if err != nil {
		return nil, &Error{"get", key, err}
	}
	return b, nil
}

func (s *redisStore) Put(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.client.Set(ctx, key, value, 0).Err(); err != nil {
		return &Error{"set", key, err}
	}
	return nil
}

func (s *redisStore) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n, err := s.client.Del(ctx, key).Result()
	if err == nil && n == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return &Error{"del", key, err}
	}
	return nil
}

func (s *redisStore) Newline() bool { return true }

func (s *redisStore) Close() error { return s.client.Close() }
