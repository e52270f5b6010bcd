package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// errNoKind means that the server does not have a kind, or no longer has it.
var errNoKind = errors.New("no such kind")

// kinds are the resources of one apiVersion.
type kinds struct {
	by    map[string]resource
	until time.Time
}

// resource is how a kind is requested: the plural is not always the kind plus "s".
type resource struct {
	Resource   string
	Namespaced bool
}

// kind returns the resource of the object that ref refers to.
func (c *Client) kind(ctx context.Context, ref ownerRef) (resource, error) {
	k, ok := c.owners.kinds.get(ref.APIVersion)
	if _, known := k.by[ref.Kind]; !ok || !known && time.Now().After(k.until) {
		if err := c.pace.wait(ctx); err != nil {
			return resource{}, err
		}
		b, err := c.rest.get(ctx, plainJSON, groupPath(ref.APIVersion), nil)
		if err != nil && !notFound(err) {
			return resource{}, err
		}
		k = kinds{until: time.Now().Add(askAgain)} // the kind may be installed later
		if err == nil {
			if k.by, err = parseResources(b); err != nil {
				return resource{}, err
			}
		}
		c.owners.kinds.put(strings.Clone(ref.APIVersion), k)
	}
	if r, ok := k.by[ref.Kind]; ok {
		return r, nil
	}
	return resource{}, fmt.Errorf("%s %s: %w", ref.APIVersion, ref.Kind, errNoKind)
}

func parseResources(b []byte) (map[string]resource, error) {
	var list struct {
		Resources []struct {
			Name       string `json:"name"`
			Kind       string `json:"kind"`
			Namespaced bool   `json:"namespaced"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("cannot parse the resources of an API group: %w", err)
	}
	by := map[string]resource{}
	for _, r := range list.Resources {
		if r.Name != "" && !strings.Contains(r.Name, "/") { // skip subresources such as pods/status
			by[r.Kind] = resource{r.Name, r.Namespaced}
		}
	}
	return by, nil
}

// claimVersions are the supported versions of resource.k8s.io, best first.
var claimVersions = []string{"v1", "v1beta2", "v1beta1"}

// errNoClaims means that the cluster does not support resource claims.
var errNoClaims = errors.New("the server has no supported version of resource.k8s.io")

// claimVersion returns the version of resource.k8s.io to use.
func (c *Client) claimVersion(ctx context.Context) (string, error) {
	b, err := c.rest.get(ctx, plainJSON, []string{"apis", "resource.k8s.io"}, nil)
	if notFound(err) {
		return "", errNoClaims
	}
	if err != nil {
		return "", err
	}
	return parseGroup(b)
}

func parseGroup(b []byte) (version string, err error) {
	served, err := parseVersions(b)
	if err != nil {
		return "", err
	}
	for _, v := range claimVersions {
		if served[v] {
			return v, nil
		}
	}
	return "", errNoClaims
}
