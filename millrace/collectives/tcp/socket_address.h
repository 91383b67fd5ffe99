// Addresses of TCP.
#pragma once

#include <sys/socket.h>

#include <string>

#include "millrace/base/result.h"

namespace millrace::engine {

/// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  /// Parses a numeric address. Errors: kInvalidArgument.
  static Result<SocketAddress> Parse(const std::string& host, int port);
  /// Returns the address of a socket's own end.
  static Result<SocketAddress> OfSocket(int fd);
  /// Returns the address of every interface, in the family of `like`, with no port yet.
  static SocketAddress Any(const SocketAddress& like);

  std::string host() const;  ///< numeric
  int port() const;
  SocketAddress WithPort(int port) const;
  bool is_loopback() const;

  int family() const { return storage_.ss_family; }
  const sockaddr* data() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t size() const { return size_; }

 private:
  friend struct Route;
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

/// How this machine reaches another one.
struct Route {
  SocketAddress local, remote;  ///< local: without a port
  /// Resolves `host` and returns the first of its addresses to which there is a route. Sends nothing to it.
  /// Errors: kUnavailable.
  static Result<Route> To(const std::string& host, int port);
};

}  // namespace millrace::engine
