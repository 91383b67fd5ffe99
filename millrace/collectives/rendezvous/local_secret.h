// Draws a secret for ranks that were started without one, and shares it among the ranks of one user on one machine.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"
#include "millrace/collectives/tcp/secret_bytes.h"

namespace millrace::collectives {

/// Draws a secret and gives it to other processes of this user, through a Unix socket without a file. The kernel tells
/// who is at the other end (SO_PEERCRED), so other users get nothing. Serves from construction to destruction, on a
/// thread of its own.
class LocalSecret {
 public:
  /// `port` is where the ranks meet: it tells the jobs of a user apart. Errors: kUnavailable if another process serves
  /// for this port.
  static Result<std::unique_ptr<LocalSecret>> Serve(int port);
  ~LocalSecret();
  const SecretBytes& secret() const;

  /// Returns the secret that rank 0 serves. Waits for rank 0 until `deadline`. Errors: kUnavailable; kPermissionDenied
  /// if another user serves there.
  static Result<SecretBytes> Fetch(int port, TimePoint deadline);

 private:
  class Server;
  explicit LocalSecret(std::unique_ptr<Server> server);
  const std::unique_ptr<Server> server_;
};

}  // namespace millrace::collectives
