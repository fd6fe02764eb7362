// Has a server of somebody else listen on 127.0.0.1 alone, and tell its port on stdout:
// node --require ./loopback.cjs SERVER
const net = require("node:net");
const { listen } = net.Server.prototype;

net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => process.stdout.write(`port ${this.address().port}\n`));
  return listen.call(this, { host: "127.0.0.1", port: Number(port) }, ...rest);
};
