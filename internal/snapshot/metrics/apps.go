package metrics

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/ydb-sidecar/sidecar/internal/apps"
)

// appRows are the figures of apps, of which there are at most apps.max and two.
var appRows = []figure{
	level("ydb.sidecar.app.open", "{call}",
		"Calls open, by app.",
		func(m *moment, tell ints) {
			for _, a := range m.Apps {
				tell(a.Open, app(a.App))
			}
		}),
	counter("ydb.sidecar.app.denied", "{call}",
		"Calls of an app that were denied, by the grant of apps.limits that denies them.",
		func(m *moment, tell ints) {
			for _, a := range m.Apps {
				for grant, n := range a.Denied {
					tell(int64(n), app(a.App), label("ydb.sidecar.grant", grant))
				}
			}
		}),
	counter("ydb.sidecar.app.lowered", "{call}",
		"Calls of an app that asked for a class above its highest and ran in that (apps.limits: class=).",
		func(m *moment, tell ints) {
			for _, a := range m.Apps {
				tell(int64(a.Lowered), app(a.App))
			}
		}),
	counter("ydb.sidecar.app.consumed_units", "{unit}",
		"Request units that the nodes reported for the calls of an app.",
		func(m *moment, tell ints) {
			for _, a := range m.Apps {
				tell(int64(a.Units), app(a.App))
			}
		}),
	level("ydb.sidecar.app.sessions", "{connection}",
		"Sessions that an app uses or waits for, by class.",
		func(m *moment, tell ints) {
			m.eachClass(func(c *apps.ClassState, app, class attribute.KeyValue) {
				tell(c.Waiting, app, class, label("ydb.sidecar.state", "waiting"))
				tell(c.InUse, app, class, label("ydb.sidecar.state", "used"))
			})
		}),
	counter("ydb.sidecar.app.served", "{connection}",
		"Sessions that an app got, by class.",
		func(m *moment, tell ints) {
			m.eachClass(func(c *apps.ClassState, app, class attribute.KeyValue) { tell(int64(c.Served), app, class) })
		}),
	counter("ydb.sidecar.app.refused", "{call}",
		"Calls of an app that were refused, by class and reason.",
		func(m *moment, tell ints) {
			m.eachClass(func(c *apps.ClassState, app, class attribute.KeyValue) {
				for why, n := range c.Refused {
					tell(int64(n), app, class, reason(why))
				}
			})
		}),
	decimal("ydb.sidecar.app.wait", "s",
		"Wait for a session in the last minute, by app, class and quantile. Retired: the next version does not have it; "+
			"ydb.sidecar.app.wait_time can be summed over processes.",
		func(m *moment, tell decimals) {
			m.eachClass(func(c *apps.ClassState, app, class attribute.KeyValue) {
				tell(c.WaitP50/1000, app, class, label("ydb.sidecar.quantile", "0.5"))
				tell(c.WaitP99/1000, app, class, label("ydb.sidecar.quantile", "0.99"))
			})
		}),
}
