package kubeapi

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// kubeconfig is the part of a kubeconfig file that is used: the cluster and the user of its
//
// current context.
// https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
type kubeconfig struct {
	cluster cluster
	user    user
}

type cluster struct {
	Server     string     `yaml:"server"`
	ServerName string     `yaml:"tls-server-name"`
	Insecure   bool       `yaml:"insecure-skip-tls-verify"`
	CA         string     `yaml:"certificate-authority"`
	CAData     base64Data `yaml:"certificate-authority-data"`
	ProxyURL   string     `yaml:"proxy-url"`
}

type user struct {
	Cert      string     `yaml:"client-certificate"`
	CertData  base64Data `yaml:"client-certificate-data"`
	Key       string     `yaml:"client-key"`
	KeyData   base64Data `yaml:"client-key-data"`
	Token     string     `yaml:"token"`
	TokenFile string     `yaml:"tokenFile"`
	Username  string     `yaml:"username"`
	Password  string     `yaml:"password"`
	As        string     `yaml:"as"`
	Exec      *struct {
		Command string `yaml:"command"`
	} `yaml:"exec"`
	AuthProvider *struct {
		Name string `yaml:"name"`
	} `yaml:"auth-provider"`
}

// Entries of the three lists in a kubeconfig.
type (
	clusterEntry struct {
		Name    string  `yaml:"name"`
		Cluster cluster `yaml:"cluster"`
	}
	contextEntry struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	}
	userEntry struct {
		Name string `yaml:"name"`
		User user   `yaml:"user"`
	}
)

// base64Data is base64-encoded in the file.
type base64Data []byte

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *base64Data) UnmarshalYAML(n *yaml.Node) error {
	var text string
	if err := n.Decode(&text); err != nil {
		return err
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("line %d: not base64", n.Line)
	}
	*d = b
	return nil
}

var yamlLine = regexp.MustCompile(`line [0-9]+`)

// Kubeconfig returns the file that kubectl would use: file, else the first of list, the value of $KUBECONFIG, else that
// in the home folder if there is one. Otherwise it returns nothing, which means the service account of the pod.
func Kubeconfig(file, list, home string) string {
	own := filepath.Join(home, ".kube", "config")
	if _, err := os.Stat(own); home == "" || err != nil {
		own = ""
	}
	return cmp.Or(append(append([]string{file}, filepath.SplitList(list)...), own)...)
}

// parseKubeconfig returns the current context of a kubeconfig.
func parseKubeconfig(b []byte) (kubeconfig, error) {
	var file struct {
		CurrentContext string         `yaml:"current-context"`
		Clusters       []clusterEntry `yaml:"clusters"`
		Contexts       []contextEntry `yaml:"contexts"`
		Users          []userEntry    `yaml:"users"`
	}
	if err := yaml.Unmarshal(b, &file); err != nil {
		// The parser quotes what it does not understand, which may be a token.
		if line := yamlLine.FindString(err.Error()); line != "" {
			return kubeconfig{}, fmt.Errorf("%s is not valid in a kubeconfig", line)
		}
		return kubeconfig{}, errors.New("is not a kubeconfig")
	}
	if file.CurrentContext == "" {
		return kubeconfig{}, errors.New("has no current-context")
	}
	var k kubeconfig
	// As in kubectl, the first entry of a name counts.
	x := slices.IndexFunc(file.Contexts, func(e contextEntry) bool { return e.Name == file.CurrentContext })
	if x < 0 {
		return kubeconfig{}, fmt.Errorf("has no context %q", file.CurrentContext)
	}
	context := file.Contexts[x].Context
	c := slices.IndexFunc(file.Clusters, func(e clusterEntry) bool { return e.Name == context.Cluster })
	if c < 0 {
		return kubeconfig{}, fmt.Errorf("has no cluster %q", context.Cluster)
	}
	k.cluster = file.Clusters[c].Cluster
	if context.User != "" {
		u := slices.IndexFunc(file.Users, func(e userEntry) bool { return e.Name == context.User })
		if u < 0 {
			return kubeconfig{}, fmt.Errorf("has no user %q", context.User)
		}
		k.user = file.Users[u].User
	}
	return k, k.user.check()
}

// check rejects unsupported kinds of credentials.
func (u user) check() error {
	switch {
	case u.Exec != nil:
		return fmt.Errorf("gets its credentials by running %s, but the agent runs no other programs: use a token or a certificate", u.Exec.Command)
	case u.AuthProvider != nil:
		return fmt.Errorf("gets its credentials from the auth-provider %s, which is not supported: use a token or a certificate", u.AuthProvider.Name)
	case u.As != "":
		return errors.New("impersonates another user, which is not supported: use that user's credentials")
	}
	return nil
}
