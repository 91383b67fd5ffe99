// The local disks of a run's machines: who shares one, copies on another one, and reading them all at a restart.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/http/client.h"
#include "millrace/http/server.h"

namespace millrace::checkpoint {

/// What a run's ranks know of the machines they are on. A machine is here whoever sees the same folder. The first rank
/// of each serves the run's folder on it to the other machines for as long as this lives: over HTTP, on the network on
/// which ranks meet, to who has a secret that rank 0 draws for every start and tells the others. Thread-safe but for
/// Meet and Survey.
class Machines : public std::enable_shared_from_this<Machines> {
 public:
  /// Collective; all ranks give the same `tier` but for its path. Null where all see one folder for the run that saves
  /// to `url`, or some cannot use theirs (saving there will tell): the tier is then that of a single machine. Fails on
  /// all ranks if one cannot serve.
  static Result<std::shared_ptr<Machines>> Meet(Group& group, const LocalTier& tier, std::string_view url,
                                                Clock& clock = SystemClock());
  ~Machines();
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  int count() const { return static_cast<int>(endpoints_.size()); }
  const std::vector<std::string>& endpoints() const { return endpoints_; }  ///< "10.0.0.7:40123" of each machine
  bool leads() const { return server_ != nullptr; }                         ///< the first rank of its machine

  /// Collective: all that is in the run's folders on any machine, as it is now. The store can be read and listed; its
  /// keys are those of `own`, this rank's folder, and what lies there is read there.
  Result<object::Location> Survey(Group& group, const object::Location& own, const object::Call& call);

  /// Puts a file of the run's folder, "step-00000150/…", onto as many next machines as `copies` says beyond one.
  /// Blocks.
  Status CopyOut(const std::string& name, ByteSpan bytes, const object::Call& call);

  /// Bytes from `offset` on of a file on another machine; `into` is filled. Blocks.
  Status Fetch(int machine, const std::string& name, std::uint64_t offset, MutableByteSpan into,
               const object::Call& call);

 private:
  Machines(int mine, int copies, Clock& clock);
  std::string UrlOf(int machine, const std::string& name) const;
  Result<http::Response> Ask(const http::Request& request, MutableByteSpan into, const object::Call& call);

  const int mine_, copies_;
  Clock& clock_;
  std::string authorization_;
  std::vector<std::string> endpoints_;
  http::Client client_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace millrace::checkpoint
