// The keeper of a node's mounts: a process that holds their FUSE descriptors, so that the death of a mount's daemon
// does not end the mount.
//
// It reads no request of a kernel and knows nothing of buckets, so there is little in it that could need an update. It
// listens on a socket of SOCK_SEQPACKET. Each message is a line of text, with a descriptor where the table says so, and
// has one answer: "ok", "busy", "none", "full TEXT" or "error TEXT". The keeper answers "full" also to a process that
// it has no room to connect, and ends that connection.
//
//   message          by        meaning, and the descriptor of the answer
//   hold NAME        daemon    this connection's process serves the mount; its FUSE descriptor, if there is one;
//                              "busy" while another process holds the name
//   keep + fd        daemon    keep this FUSE descriptor under the name that the connection holds
//   drop             daemon    the mount has ended: forget the name
//   plan NAME + fd   starter   keep what starts a daemon for the name
//   read NAME        starter   that descriptor, or "none"
//   forget NAME      starter   forget a name that nobody holds; "busy" if somebody does
//   list             starter   "ok", then a line for each name: NAME held|left kept|new plan|bare
//
// A starter that has waited in vain closes its connection. The keeper does not do what such a starter asked for: by now
// the starter may have asked for something else. "keep" and "drop" are done in any case, as their daemon wants.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The most names that a keeper has. A node has some hundred volumes.
inline constexpr std::size_t kMaxHeldSessions = 4096;
/// The keeper's descriptors: three for each name (a connection, a FUSE descriptor, a plan), and these besides.
inline constexpr std::size_t kHolderDescriptors = 128;
/// The time that a client of a keeper waits for each answer. A keeper answers in microseconds: one that needs longer is
/// stopped, or its machine is out of memory.
inline constexpr Duration kHolderTimeout = std::chrono::seconds(5);

/// A keeper in this process, on a thread of its own. Destruction closes its descriptors: mounts whose daemons live go
/// on, and their daemons bring the descriptors to the next keeper.
class SessionHolder {
 public:
  /// Listens on a socket that only this user can open. Replaces a socket whose keeper is gone. The keeper has as many
  /// names as the process's limit of descriptors allows, at most kMaxHeldSessions, and logs if that is fewer.
  /// Errors: kAlreadyExists if a keeper listens there; kInvalidArgument if the path is too long.
  static Result<std::unique_ptr<SessionHolder>> Start(const std::filesystem::path& socket, Logger log);
  virtual ~SessionHolder() = default;
};

/// One message of the protocol, and the descriptor that came with it.
struct SessionHolderMessage {
  std::string text;
  UniqueFd descriptor;
};
/// Sends a message, with `descriptor` unless it is negative. Errors: kUnavailable if the other end is gone;
/// kDeadlineExceeded if it has not taken the message within the socket's timeout.
Status SendHolderMessage(int socket, std::string_view text, int descriptor);
/// Blocks until a message comes. Errors: kUnavailable at the end of the connection; kDeadlineExceeded after the
/// socket's timeout.
Result<SessionHolderMessage> ReceiveHolderMessage(int socket);
/// Returns a socket that is connected with a keeper. Connecting, each sending and each receiving wait for at most
/// `timeout`. Errors: kUnavailable if no keeper listens; kDeadlineExceeded if the keeper does not run on.
Result<UniqueFd> ConnectSessionHolder(const std::filesystem::path& socket, Duration timeout = kHolderTimeout);

}  // namespace millrace::mount
