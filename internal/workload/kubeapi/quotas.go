package kubeapi

import (
	"context"
	"fmt"
	"net/url"
)

// ResourceQuotas returns the ResourceQuotas of all namespaces as a JSON list. It needs
// permission to list resourcequotas in the whole cluster. kubeconfig is as in Config.
func ResourceQuotas(ctx context.Context, kubeconfig string) ([]byte, error) {
	a, err := Open(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	b, err := a.rest.get(ctx, plainJSON, []string{"api", "v1", "resourcequotas"}, url.Values{"resourceVersion": {"0"}})
	if err != nil {
		return nil, fmt.Errorf("kubeapi: cannot list the resource quotas: %w", shorten(err))
	}
	return b, nil
}
