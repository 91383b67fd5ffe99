// The keeper of a node's mounts: a process that holds their FUSE descriptors, so that the death of a mount's daemon
// does not end the mount.
//
// It reads no request of a kernel and knows nothing of buckets, so there is little in it that could need an update. It
// listens on a socket of SOCK_SEQPACKET. Each message is a line of text, with a descriptor where the table says so, and
// has one answer: "ok", "busy", "none" or "error TEXT".
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
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/files/files.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"

namespace millrace::mount {

/// The most names that a keeper has, and the most connections that it serves. A node has some hundred volumes.
inline constexpr std::size_t kMaxHeldSessions = 4096;

/// A keeper in this process, on a thread of its own. Destruction closes its descriptors: mounts whose daemons live go
/// on, and their daemons bring the descriptors to the next keeper.
class SessionHolder {
 public:
  /// Listens on a socket that only this user can open. Replaces a socket whose keeper is gone.
  /// Errors: kAlreadyExists if a keeper listens there; kInvalidArgument if the path is too long.
  static Result<std::unique_ptr<SessionHolder>> Start(const std::filesystem::path& socket, Logger log);
  virtual ~SessionHolder() = default;
};

/// One message of the protocol, and the descriptor that came with it.
struct SessionHolderMessage {
  std::string text;
  UniqueFd descriptor;
};
/// Sends a message, with `descriptor` unless it is negative. Errors: kUnavailable if the other end is gone.
Status SendHolderMessage(int socket, std::string_view text, int descriptor);
/// Blocks until a message comes. Errors: kUnavailable at the end of the connection.
Result<SessionHolderMessage> ReceiveHolderMessage(int socket);
/// Returns a socket that is connected with a keeper. Errors: kUnavailable if none listens.
Result<UniqueFd> ConnectSessionHolder(const std::filesystem::path& socket);

}  // namespace millrace::mount
