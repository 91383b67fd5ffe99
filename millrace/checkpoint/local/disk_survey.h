// What the machines of a run have on their disks, as one store.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/exchange/rank_exchange.h"
#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/object/location.h"
#include "millrace/object/read_store.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::checkpoint {

/// All that was in the run's folders, on any machine, when it was taken. Can be read and listed, by the keys that this
/// rank's own folder would have; what lies there is read there, the rest from a machine that has it. Of different
/// manifests of one step the youngest counts, as a machine may come back that has missed some saves. Thread-safe but
/// for Distrust.
class DiskSurvey final : public object::ReadStore {
 public:
  /// Collective. `own`: this rank's folder of the run.
  static Result<std::shared_ptr<DiskSurvey>> Take(RankExchange& group, std::shared_ptr<PeerMachines> machines,
                                                  const object::Location& own, const object::Call& call);

  /// Whether this rank's machine has a copy.
  bool Here(const std::string& key) const;
  /// From now on that machine's copy of the key counts as none. Not while anything is read.
  void Distrust(int machine, const std::string& key);

  std::string Describe() const override { return own_.store->Describe(); }
  void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override;
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
           object::Done<std::optional<object::GetResult>> done) override;
  void GetTo(std::string key, object::GetOptions options, std::uint64_t limit, object::Sink& sink, object::Call call,
             object::Done<std::optional<object::GetResult>> done) override;
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override;

 private:
  struct Found {
    object::ObjectInfo info;    ///< without an ETag: each copy has its own
    std::vector<int> machines;  ///< never empty
  };
  DiskSurvey(std::shared_ptr<PeerMachines> machines, object::Location own)
      : machines_(std::move(machines)), own_(own) {}
  Result<std::optional<object::GetResult>> Fetch(const Found& found, const std::optional<object::ByteRange>& range,
                                                 MutableByteSpan into, const object::Call& call) const;

  const std::shared_ptr<PeerMachines> machines_;
  const object::Location own_;
  std::map<std::string, Found> found_;  ///< by key
  object::WorkQueue queue_{"peer-disks",
                           PeerMachines::kReaders};  ///< last: its destruction ends calls that use the rest
};

}  // namespace millrace::checkpoint
