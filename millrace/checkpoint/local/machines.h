// The local disks of a run's machines: who shares one, copies on another one, and reading them all at a restart.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/checkpoint/exchange/group.h"
#include "millrace/checkpoint/tier/local_tier_options.h"
#include "millrace/checkpoint/tier/peer_replicator.h"
#include "millrace/http/client/client.h"
#include "millrace/http/server/server.h"

namespace millrace::checkpoint {

/// What a run's ranks know of the machines they are on. A machine is here whoever sees the same folder. The first rank
/// of each serves the run's folder on it to the other machines for as long as this lives: over HTTP, on the network on
/// which ranks meet, to who has a secret that rank 0 draws for every start and tells the others. Thread-safe.
class Machines final : public PeerReplicator {
 public:
  static constexpr int kReaders = 8;  ///< who Fetch at once are well served

  /// Collective; all ranks give the same `tier` but for its path. Null where all see one folder for the run that saves
  /// to `url`, or some cannot use theirs (saving there will tell): the tier is then that of a single machine. Fails on
  /// all ranks if one cannot serve.
  static Result<std::shared_ptr<Machines>> Meet(Group& group, const LocalTier& tier, std::string_view url,
                                                Clock& clock = SystemClock());
  ~Machines() override;
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  int count() const { return static_cast<int>(endpoints_.size()); }
  const std::vector<std::string>& endpoints() const { return endpoints_; }  ///< "10.0.0.7:40123" of each machine
  int mine() const { return mine_; }
  /// This rank is number `place` of the `ranks_here` on its machine; the first one leads.
  int place() const { return place_; }
  int ranks_here() const { return ranks_here_; }
  bool leads() const override { return place_ == 0; }

  /// Puts the file onto as many next machines as `copies` says beyond one.
  Status CopyOut(const std::string& name, ByteSpan bytes, const object::Call& call) override;

  /// Bytes from `offset` on of a file on another machine; `into` is filled. Blocks.
  Status Fetch(int machine, const std::string& name, std::uint64_t offset, MutableByteSpan into,
               const object::Call& call);

 private:
  Machines(int mine, int copies, Clock& clock);
  std::string UrlOf(int machine, const std::string& name) const;
  Result<http::Response> Ask(const http::Request& request, MutableByteSpan into, const object::Call& call);

  const int mine_, copies_;
  int place_ = 0, ranks_here_ = 1;
  Clock& clock_;
  std::string authorization_;
  std::vector<std::string> endpoints_;
  http::Client client_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace millrace::checkpoint
