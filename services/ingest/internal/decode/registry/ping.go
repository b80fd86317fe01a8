package registry

import "context"

// Ping asks for the list of subjects and returns their number: nil when a
// registry answers with the configured credentials.
func (c *Client) Ping(ctx context.Context) (subjects int, err error) {
	var list []string
	err = c.get(ctx, "the list of subjects", "/subjects", "", &list)
	return len(list), err
}
