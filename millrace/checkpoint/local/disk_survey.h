// The checkpoint folders on the disks of all machines of a run, merged into one read-only store.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "millrace/checkpoint/local/peer_machines.h"
#include "millrace/checkpoint/save/rank_exchange.h"
#include "millrace/object/location.h"
#include "millrace/object/read_store.h"
#include "millrace/object/support/work_queue.h"

namespace millrace::checkpoint {

/// The union of the run's folders on all machines, as they were when the survey was taken. Keys are those of this
/// rank's own folder. Reads a file from this machine's disk if it is there, else from another machine. If machines have
/// different manifests of a step, the youngest counts, since a machine may have missed saves. Thread-safe except for
/// Distrust.
class DiskSurvey final : public object::ReadStore {
 public:
  /// Collective. Lists the folders of all machines. `own` is this rank's folder of the run. Blocks.
  static Result<std::shared_ptr<DiskSurvey>> Take(RankExchange& group, std::shared_ptr<PeerMachines> machines,
                                                  const object::Location& own, const object::Call& call);

  /// Returns whether this rank's machine has a copy of the file.
  bool HasLocalCopy(const std::string& key) const;
  /// Ignores that machine's copy of the file from now on. Must not be called while another call is under way.
  void IgnoreCopy(int machine, const std::string& key);

  std::string Describe() const override { return own_.store->Describe(); }
  void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override;
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
           object::Done<std::optional<object::GetResult>> done) override;
  void GetTo(std::string key, object::GetOptions options, std::uint64_t limit, object::Sink& sink, object::Call call,
             object::Done<std::optional<object::GetResult>> done) override;
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override;

 private:
  struct FoundFile {
    object::ObjectInfo info;    ///< without an ETag: each copy has its own
    std::vector<int> machines;  ///< machines that have a copy; never empty
  };
  DiskSurvey(std::shared_ptr<PeerMachines> machines, object::Location own)
      : machines_(std::move(machines)), own_(own) {}
  Result<std::optional<object::GetResult>> Fetch(const FoundFile& found, const std::optional<object::ByteRange>& range,
                                                 MutableByteSpan into, const object::Call& call) const;

  const std::shared_ptr<PeerMachines> machines_;
  const object::Location own_;
  std::map<std::string, FoundFile> found_;  ///< by key
  object::WorkQueue queue_{"peer-disks",
                           PeerMachines::kReaders};  ///< last: its destruction ends calls that use the rest
};

}  // namespace millrace::checkpoint
