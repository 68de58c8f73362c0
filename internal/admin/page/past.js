// What the page knows of the last ten minutes.

const most = 300; // points kept
const least = 60; // points that charts have room for from the start

// What is known of the last ten minutes: each series has the points up to number last.
export const past = { process: "", last: 0, length: 0, at: 0, step: 2000, all: {}, errors: {}, nodes: {} };

export function merge(process, p) {
  if (past.process !== process || p.first !== past.last + 1) {
    Object.assign(past, { process, length: 0, all: {}, errors: {}, nodes: {} });
  }
  const n = p.last + 1 - p.first;
  const join = (into, from) => {
    for (const key of new Set([...Object.keys(into), ...Object.keys(from)])) {
      const had = into[key] ?? new Array(past.length).fill(0);
      into[key] = had.concat(from[key] ?? new Array(n).fill(0)).slice(-most);
      if (!from[key] && into[key].every((v) => v === 0)) delete into[key];
    }
  };
  join(past.all, p.all);
  join(past.errors, p.errors);
  for (const id of Object.keys(past.nodes)) if (!p.nodes[id]) delete past.nodes[id];
  for (const [id, series] of Object.entries(p.nodes)) join((past.nodes[id] ??= {}), series);
  Object.assign(past, { last: p.last, at: p.at_ms, step: p.step_ms, length: Math.min(past.length + n, most) });
}

// shown is how many points there is room for; room has the values of a series in it, with 0 where there are none yet.
export const shown = () => Math.max(past.length, least);
export const room = (values = []) => new Array(shown() - values.length).fill(0).concat(values);
export const times = () => Array.from({ length: shown() }, (_, i) => (past.at - (shown() - 1 - i) * past.step) / 1000);
export const newest = (values) => values?.at(-1) ?? 0;
