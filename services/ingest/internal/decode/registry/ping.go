package registry

import "context"

// Ping asks for the list of subjects and returns their number: nil when a
// registry answers with the configured credentials.
func (c *Client) Ping(ctx context.Context) (subjects int, err error) {
	list, err := get[[]string](ctx, c, "the list of subjects", "/subjects", "")
	return len(list), err
}
