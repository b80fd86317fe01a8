package s3file

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"testing"

	iceio "github.com/apache/iceberg-go/io"
	s3io "github.com/apache/iceberg-go/io/gocloud/s3"
	"github.com/apache/iceberg-go/utils"
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
