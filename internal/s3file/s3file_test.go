package s3file

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	iceio "github.com/apache/iceberg-go/io"
	s3io "github.com/apache/iceberg-go/io/gocloud/s3"
	"github.com/apache/iceberg-go/utils"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go/middleware"
	"github.com/stretchr/testify/require"
)

// store is an S3 that answers every request with a status, and the properties of a
// client to it.
func store(t *testing.T, status int) map[string]string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("x-amz-request-id", "A301B") // as good as a file of that name while the store cannot be reached
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	return map[string]string{"s3.endpoint": s.URL, "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
}

// eachScheme asks for a file under every scheme.
func eachScheme(t *testing.T, ctx context.Context, props map[string]string, check func(error)) {
	t.Helper()
	for _, scheme := range schemes {
		name := scheme + "://lake/00301-a.metadata.json"
		files, err := iceio.LoadFS(ctx, props, name)
		require.NoError(t, err)
		_, err = files.Open(name)
		require.ErrorContains(t, err, "00301-a.metadata.json")
		check(err)
	}
}

// G6: a file that a store does not show is not gone, whoever made the client.
func TestOnlyWhatTheStoreSaysIsNotThereIsNotThere(t *testing.T) {
	Register()
	Register()
	denied, missing := store(t, http.StatusForbidden), store(t, http.StatusNotFound)
	ofCaller, err := s3io.ParseAWSConfig(t.Context(), denied)
	require.NoError(t, err)
	var calls int
	ofCaller.APIOptions = append(ofCaller.APIOptions, func(*middleware.Stack) error { calls++; return nil })
	for _, ctx := range []context.Context{t.Context(), utils.WithAwsConfig(t.Context(), ofCaller)} {
		eachScheme(t, ctx, denied, func(err error) {
			require.NotErrorIs(t, err, fs.ErrNotExist)
			answer, ok := errors.AsType[interface {
				error
				HTTPStatusCode() int
			}](err)
			require.True(t, ok, "what the store said can still be asked for: %v", err)
			require.Equal(t, http.StatusForbidden, answer.HTTPStatusCode())
		})
		eachScheme(t, ctx, missing, func(err error) { require.ErrorIs(t, err, fs.ErrNotExist) })
	}
	require.NotZero(t, calls, "the settings of a caller are used")
	require.Len(t, ofCaller.APIOptions, 1, "and stay what they are")
}

// A store that takes requests and never answers them is given up, whoever made the
// client.
func TestAStoreThatNeverAnswersIsGivenUp(t *testing.T) {
	Register()
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	props := map[string]string{"s3.endpoint": s.URL, "s3.region": "us-east-1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
	ctx := Within(t.Context(), Limits{Answer: 30 * time.Millisecond, Attempts: 1})
	ofCaller, err := Config(ctx, props)
	require.NoError(t, err)
	for _, ctx := range []context.Context{ctx, utils.WithAwsConfig(t.Context(), ofCaller)} {
		asked.Store(0)
		eachScheme(t, ctx, props, func(err error) {
			require.NotErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, "timeout awaiting response headers")
		})
		require.EqualValues(t, len(schemes), asked.Load())
	}
}

func TestClientsAreBoundedUnlessTheOperatorSaysHow(t *testing.T) {
	for dial, props := range map[time.Duration]map[string]string{
		dialTimeout:      {"s3.region": "us-east-1"},
		90 * time.Second: {"s3.region": "us-east-1", "s3.connect-timeout": "90"},
	} {
		cfg, err := Config(t.Context(), props)
		require.NoError(t, err)
		client := cfg.HTTPClient.(*awshttp.BuildableClient)
		require.Equal(t, dial, client.GetDialer().Timeout)
		require.Equal(t, 30*time.Second, client.GetTransport().ResponseHeaderTimeout)
		require.Equal(t, 5*time.Minute, client.GetTimeout())
		require.Equal(t, 4, cfg.RetryMaxAttempts)
	}
}
