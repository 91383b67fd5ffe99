// The machines of a run: which ranks share one, copies of files on other machines, and reading the files back.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/checkpoint/save/local_tier_options.h"
#include "millrace/checkpoint/save/peer_replicator.h"
#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/http/client/client.h"
#include "millrace/http/server/server.h"

namespace millrace::checkpoint {

/// The machines of a run, seen from one rank. Ranks that see the same folder count as one machine. The first rank of
/// each machine serves the run's folder to the other machines over HTTP, as long as this object lives. It listens on
/// the network on which ranks meet, and answers requests with a secret that rank 0 draws at every start. Thread-safe.
class PeerMachines final : public PeerReplicator {
 public:
  /// How many threads should call Fetch at a time. A guess: as many as Reader::ReadMany has by default.
  static constexpr int kReaders = 8;

  /// Collective. All ranks give the same `tier`; only the path may differ. Returns null if `tier` asks for one copy, if
  /// all ranks see one folder for the run that saves to `url`, or if a rank cannot use its folder. In the last case
  /// saves to the folder report the error. Fails on all ranks if one rank cannot serve.
  static Result<std::shared_ptr<PeerMachines>> Connect(RankExchange& group, const LocalTierOptions& tier,
                                                       std::string_view url, Clock& clock = SystemClock());
  ~PeerMachines() override;
  PeerMachines(const PeerMachines&) = delete;
  PeerMachines& operator=(const PeerMachines&) = delete;

  int count() const { return static_cast<int>(endpoints_.size()); }
  const std::vector<std::string>& endpoints() const { return endpoints_; }  ///< "10.0.0.7:40123" of each machine
  /// The number of this rank's machine, in the order of their first ranks.
  int index() const { return index_; }
  /// The number of this rank among the `local_size` ranks of its machine.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  bool is_machine_leader() const override { return local_rank_ == 0; }

  /// Puts the file onto the `copies - 1` machines after this one, in a circle.
  Status CopyToPeers(const std::string& name, ByteSpan bytes, const object::Call& call) override;

  /// Fills `into` with the bytes from `offset` on of a file on another machine. Blocks; tries again if the machine is
  /// busy.
  Status Fetch(int machine, const std::string& name, std::uint64_t offset, MutableByteSpan into,
               const object::Call& call);

 private:
  PeerMachines(int index, int copies, Clock& clock);
  std::string UrlOf(int machine, const std::string& name) const;
  Result<http::Response> SendWithRetries(const http::Request& request, MutableByteSpan into, const object::Call& call);

  const int index_, copies_;
  int local_rank_ = 0, local_size_ = 1;
  Clock& clock_;
  std::string authorization_;
  std::vector<std::string> endpoints_;
  http::Client client_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace millrace::checkpoint
