package registry

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ContextOf is the context of a qualified subject (":.staging:orders-value" is of
// ".staging"), "" for any other: the context in which the id of its schema counts.
func ContextOf(subject string) string { return contextOf(subject) }

// Qualified is the name of a context's subject; one that names its context already
// stays as it is.
func Qualified(registryContext, subject string) string {
	if registryContext == "" || strings.HasPrefix(subject, ":.") {
		return subject
	}
	return ":" + registryContext + ":" + subject
}

// ID looks up the schema id of a version of a subject; version 0 is the latest. It is asked anew at each call.
func (c *Client) ID(ctx context.Context, subject string, number int) (int32, error) {
	word := "latest"
	if number > 0 {
		word = strconv.Itoa(number)
	}
	what := fmt.Sprintf("subject %s version %s", subject, word)
	key := "" // the latest version is not kept: it changes
	if number > 0 {
		key = "subject-id-" + hash(subject) + "-" + word
	}
	a, err := get[idAnswer](ctx, c, what, "/subjects/"+url.PathEscape(subject)+"/versions/"+word, key)
	return a.ID, err
}

type idAnswer struct {
	ID int32 `json:"id"`
}

func (a idAnswer) check() error {
	if a.ID <= 0 {
		return errors.New("it names no schema id")
	}
	return nil
}

// Versions lists the versions of a subject, oldest first. It is asked anew at each call.
func (c *Client) Versions(ctx context.Context, subject string) ([]int, error) {
	out, err := get[[]int](ctx, c, "subject "+subject, "/subjects/"+url.PathEscape(subject)+"/versions", "")
	if err != nil {
		return nil, err
	}
	slices.Sort(out)
	return out, nil
}
