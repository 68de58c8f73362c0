// Makes the calls of a JSON file with @grpc/grpc-js, at each target, and prints what came of each as a line of JSON.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const grpc = createRequire(process.argv[3])('@grpc/grpc-js');
const task = JSON.parse(readFileSync(process.argv[2]));
const same = (x) => x;

// Metadata without what differs from call to call.
function pairs(metadata) {
  const out = {};
  for (const [key, value] of Object.entries(metadata?.getMap() ?? {})) {
    if (key !== 'date' && key !== 'content-type') out[key] = Buffer.isBuffer(value) ? value.toString('base64') : value;
  }
  return out;
}

function run(client, call) {
  const requests = call.requests.map((r) => Buffer.from(r, 'base64'));
  const metadata = new grpc.Metadata();
  for (const [key, value] of Object.entries(call.metadata ?? {})) {
    metadata.set(key, key.endsWith('-bin') ? Buffer.from(value, 'base64') : value);
  }
  const deadline = Date.now() + (call.timeout_ms ?? 60000);
  const stream = client.makeBidiStreamRequest(call.method, same, same, metadata, { deadline });
  const answers = [];
  let header = {};
  const send = (all) => {
    for (const request of all) stream.write(request);
    if (requests.length === 0 && !call.never_ends) stream.end();
  };
  return new Promise((resolve) => {
    stream.on('metadata', (m) => { header = pairs(m); });
    stream.on('data', (answer) => {
      answers.push(createHash('sha256').update(answer).digest('hex'));
      if (call.cancel_after === answers.length) stream.cancel();
      else if (call.ping_pong) send(requests.splice(0, 1));
    });
    stream.on('error', () => {}); // the status says it
    stream.on('status', ({ code, details, metadata: trailer }) => {
      // A server of grpc-go resets the stream at its own deadline, perhaps first.
      const name = grpc.status[call.timeout_ms && code === grpc.status.CANCELLED ? grpc.status.DEADLINE_EXCEEDED : code];
      resolve(['DEADLINE_EXCEEDED', 'CANCELLED'].includes(name) ? { code: name, answers }
        : { code: name, message: details, answers, header, trailer: pairs(trailer) });
    });
    send(requests.splice(0, call.ping_pong ? 1 : requests.length));
    if (call.cancel_after === 0) stream.cancel();
  });
}

for (const target of task.targets) {
  const limits = { 'grpc.max_receive_message_length': 64 << 20, 'grpc.max_send_message_length': 64 << 20, 'grpc.ssl_target_name_override': 'localhost' };
  const creds = target.ca ? grpc.credentials.createSsl(readFileSync(target.ca)) : grpc.credentials.createInsecure();
  const client = new grpc.Client(target.address, creds, limits);
  for (const call of task.calls) {
    console.log(JSON.stringify({ target: target.name, call: call.name, ...await run(client, call) }));
  }
  client.close();
}
process.stdout.write('', () => process.exit()); // timers of cancelled calls would hold it up
