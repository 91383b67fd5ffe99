// Addresses of TCP.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::collectives {

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

/// The route from this machine to another one.
struct Route {
  SocketAddress local, remote;  ///< local: without a port
  /// Resolves `host` and returns the first of its addresses to which there is a route. Sends nothing to it.
  /// Errors: kUnavailable.
  static Result<Route> To(const std::string& host, int port);
};

/// Returns whether `host`, as it is written, is loopback: "127.0.0.1", "localhost" or "::1".
bool IsThisMachine(std::string_view host);

/// Returns the address on which a rank listens, and at which the others reach it. This is loopback if the master, as
/// its name is written, is this machine. Otherwise it is this machine's address on the way to the master. On all
/// interfaces only if that address is of no use: if the master's name resolves to loopback here, or to an address that
/// rank 0's machine does not have itself. The port is 0.
SocketAddress ListenAddress(const std::string& master_host, const Route& to_master, bool is_master);

}  // namespace millrace::collectives
