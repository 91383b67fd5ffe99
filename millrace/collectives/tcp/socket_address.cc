#include "millrace/collectives/tcp/socket_address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "millrace/base/files/files.h"

namespace millrace::collectives {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); error != 0) {
    return Fail(Code::kUnavailable, "{}: {}", host, ::gai_strerror(error));
  }
  return AddressList(found, &::freeaddrinfo);
}

in_port_t& PortOf(sockaddr_storage& storage) {
  return storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(storage).sin_port;
}

}  // namespace

Result<SocketAddress> SocketAddress::Parse(const std::string& host, int port) {
  auto found = Resolve(host, port, AI_NUMERICHOST);
  if (!found) return Fail(found.error().WithCode(Code::kInvalidArgument));
  SocketAddress address;
  std::memcpy(&address.storage_, (*found)->ai_addr, (*found)->ai_addrlen);
  address.size_ = (*found)->ai_addrlen;
  return address;
}

Result<SocketAddress> SocketAddress::OfSocket(int fd) {
  SocketAddress address;
  address.size_ = sizeof address.storage_;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.size_) != 0) {
    return Fail(ErrnoError(errno, "getsockname"));
  }
  return address;
}

SocketAddress SocketAddress::Any(const SocketAddress& like) {
  SocketAddress any;
  any.storage_.ss_family = like.storage_.ss_family;  // all other bytes are zero: INADDR_ANY, in6addr_any
  any.size_ = like.size_;
  return any;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  if (::getnameinfo(data(), size_, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

int SocketAddress::port() const { return ntohs(PortOf(const_cast<sockaddr_storage&>(storage_))); }

SocketAddress SocketAddress::WithPort(int port) const {
  SocketAddress made = *this;
  PortOf(made.storage_) = htons(static_cast<in_port_t>(port));
  return made;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(storage_).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(storage_).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

Result<Route> Route::To(const std::string& host, int port) {
  const AddressList found = MR_TRY(Resolve(host, port, 0));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* each = found.get(); each != nullptr; each = each->ai_next) {
    // A datagram socket that connects asks the kernel for the route, and sends nothing.
    const UniqueFd fd(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), each->ai_addr, each->ai_addrlen) != 0) {
      error = errno;
      continue;
    }
    Route route;
    std::memcpy(&route.remote.storage_, each->ai_addr, each->ai_addrlen);
    route.remote.size_ = each->ai_addrlen;
    route.local = MR_TRY(SocketAddress::OfSocket(fd.get())).WithPort(0);
    return route;
  }
  return Fail(ErrnoError(error, fmt::format("no route to {}", host)).WithCode(Code::kUnavailable));
}

bool IsThisMachine(std::string_view host) { return host == "127.0.0.1" || host == "localhost" || host == "::1"; }

SocketAddress ListenAddress(const std::string& master_host, const Route& to_master, bool is_master) {
  const bool is_known = to_master.local.is_loopback() ? IsThisMachine(master_host)
                                                      : !is_master || to_master.local.host() == to_master.remote.host();
  return is_known ? to_master.local : SocketAddress::Any(to_master.local);
}

}  // namespace millrace::collectives
