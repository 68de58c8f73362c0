// What the page knows of the last ten minutes.

const most = 300; // points kept
const least = 60; // points that charts have room for from the start
const inBin = 5; // points that charts and sparklines show as one: ten seconds

// Each series has the points up to number last.
export const past = { process: "", last: 0, length: 0, at: 0, step: 2000, all: {}, errors: {}, caller: new Set(), nodes: {} };

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
  for (const kind of p.caller_errors ?? []) past.caller.add(kind);
  for (const id of Object.keys(past.nodes)) if (!p.nodes[id]) delete past.nodes[id];
  for (const [id, series] of Object.entries(p.nodes)) join((past.nodes[id] ??= {}), series);
  Object.assign(past, { last: p.last, at: p.at_ms, step: p.step_ms, length: Math.min(past.length + n, most) });
}

// shown is how many points there is room for; room has the values of a series in it, with 0 where there are none yet.
export const shown = () => Math.max(past.length, least);
export const room = (values = []) => new Array(shown() - values.length).fill(0).concat(values);
export const newest = (values) => values?.at(-1) ?? 0;

// lately is the mean of the newest ten seconds: single points of what is rare jump between 0 and 1.
export function lately(values = []) {
  const some = values.slice(-inBin);
  return some.length ? some.reduce((a, b) => a + b, 0) / some.length : 0;
}

// bins are the first and the last place, in room, of the points that are shown as one. They go by the numbers of the
// points, so that a bin keeps its points while new ones come.
export function bins() {
  const out = [], length = shown();
  for (let i = 0; i < length; i++) {
    const bin = Math.floor((past.last - (length - 1 - i)) / inBin);
    if (out.at(-1)?.bin === bin) out.at(-1).end = i;
    else out.push({ bin, begin: i, end: i });
  }
  return out;
}

export const times = (all) => all.map(({ end }) => (past.at - (shown() - 1 - end) * past.step) / 1000);

// means and peaks have one value for each bin. weights, such as calls, say how much each point counts.
export function means(all, values, weights) {
  const v = room(values), w = weights && room(weights);
  return all.map(({ begin, end }) => {
    let sum = 0, of = 0;
    for (let i = begin; i <= end; i++) {
      sum += v[i] * (w ? w[i] : 1);
      of += w ? w[i] : 1;
    }
    return of > 0 ? sum / of : 0;
  });
}

export function peaks(all, values) {
  const v = room(values);
  return all.map(({ begin, end }) => Math.max(...v.slice(begin, end + 1)));
}
