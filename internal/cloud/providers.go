package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
)

// server is a client of one metadata server.
type server struct {
	base   string
	client *http.Client
}

// get returns the body of one response. headers are key, value, key, value, ...
func (s *server) get(ctx context.Context, method, path string, headers ...string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
	if err != nil {
		return "", err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", path, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	return string(body), err
}

// askAWS uses version 2 of the instance metadata service, which requires a token.
func askAWS(ctx context.Context, s *server) (map[string]string, error) {
	token, err := s.get(ctx, http.MethodPut, "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60")
	if err != nil {
		return nil, err
	}
	if !plausible(token) {
		return nil, errors.New("the response is not a token")
	}
	text, err := s.get(ctx, http.MethodGet, "/latest/dynamic/instance-identity/document", "X-aws-ec2-metadata-token", token)
	if err != nil {
		return nil, err
	}
	var doc struct{ Region, AvailabilityZone, InstanceType, InstanceID, AccountID string }
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	return map[string]string{
		"cloud.platform":          "aws_ec2",
		"cloud.region":            doc.Region,
		"cloud.availability_zone": doc.AvailabilityZone,
		"cloud.account.id":        doc.AccountID,
		"host.type":               doc.InstanceType,
		"host.id":                 doc.InstanceID,
	}, nil
}

// askGCE requests single values: the recursive listing would include the secrets that
// people keep in custom metadata.
func askGCE(ctx context.Context, s *server) (map[string]string, error) {
	var errs []error
	get := func(name string) string {
		text, err := s.get(ctx, http.MethodGet, "/computeMetadata/v1/"+name, "Metadata-Flavor", "Google")
		if err != nil || text == "" {
			errs = append(errs, err)
			return ""
		}
		return path.Base(strings.TrimSpace(text)) // last element of projects/123/zones/us-central1-a
	}
	zone := get("instance/zone")
	i := strings.LastIndexByte(zone, '-')
	if i < 0 {
		return nil, errors.Join(append(errs, errors.New("the response is not a zone"))...)
	}
	return map[string]string{
		"cloud.platform":          "gcp_compute_engine",
		"cloud.region":            zone[:i],
		"cloud.availability_zone": zone,
		"cloud.account.id":        get("project/project-id"),
		"host.type":               get("instance/machine-type"),
		"host.id":                 get("instance/id"),
	}, errors.Join(errs...)
}

func askAzure(ctx context.Context, s *server) (map[string]string, error) {
	text, err := s.get(ctx, http.MethodGet, "/metadata/instance/compute?api-version=2021-02-01&format=json", "Metadata", "true")
	if err != nil {
		return nil, err
	}
	var doc struct{ Location, Zone, VMSize, VMID, SubscriptionID string }
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	zone := doc.Zone // a number within the region
	if zone != "" {
		zone = doc.Location + "-" + zone
	}
	return map[string]string{
		"cloud.platform":          "azure.vm",
		"cloud.region":            doc.Location,
		"cloud.availability_zone": zone,
		"cloud.account.id":        doc.SubscriptionID,
		"host.type":               doc.VMSize,
		"host.id":                 doc.VMID,
	}, nil
}
