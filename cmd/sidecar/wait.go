package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// How often and how long a sidecar is asked.
const (
	waitPause = 100 * time.Millisecond
	askLimit  = 2 * time.Second
)

// wait returns when the sidecar has started.
func wait(i *invocation) func() error {
	deep := i.set.Bool("deep", false, "Wait until the sidecar also has a healthy node")
	limit := i.duration("timeout", time.Minute, "Give up after this `time` (1m)")
	return func() error { return i.wait(*deep, *limit) }
}

// wait asks the admin API until it reports that the sidecar has started, or limit is over.
func (i *invocation) wait(deep bool, limit time.Duration) error {
	op, err := i.operate()
	if err != nil {
		return err
	}
	url := op.base + "/startupz"
	if deep {
		url += "?deep=1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	tick := time.NewTicker(waitPause)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx, op.client, url)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err // the last answer says more than that there was no time for another
		}
		select {
		case <-tick.C:
		case s := <-i.signals:
			return fmt.Errorf("interrupted (%v): %w", s, last)
		case <-ctx.Done():
			return fmt.Errorf("not started within %v: %w", limit, last)
		}
	}
}

// reachable turns an address to listen on into one to connect to.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return listen
}

// ask makes one request; nil means 200.
func ask(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err // it names the address
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.Join(strings.Fields(string(text)), " "))
	}
	return err
}
