// Saving and loading sharded, checksummed, atomically committed checkpoints. Knows bytes, names and shapes; no tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/object/connection.h"

namespace millrace::checkpoint {

/// A piece of a tensor that this rank is to save: consecutive elements, in C order, of a box of it.
struct SavePiece {
  std::string name;
  TensorMeta meta;          ///< of the whole tensor
  std::uint64_t begin = 0;  ///< first element, counted within the box
  ByteSpan bytes;           ///< borrowed until Save returns (it copies)
  Box box = {};             ///< of the tensor; by default all of it
};

/// How ranks of one job agree. Rank 0 commits after all ranks have reported; implemented over the training collective
/// or, in tests, over threads. Calls block; they happen on the writer's background thread.
class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Rank 0 receives every rank's string in rank order; others an empty vector.
  virtual Result<std::vector<std::string>> Gather(std::string mine) = 0;
  /// Everyone gets rank 0's string.
  virtual Result<std::string> Broadcast(std::string from_rank_0) = 0;
};
std::unique_ptr<Group> SingleProcessGroup();

struct Retention {
  int keep_last = 3;             ///< at least 1
  std::uint64_t keep_every = 0;  ///< steps that are multiples of it are kept for ever; 0: none
  int keep_best = 0;             ///< so many with the best `metric`, among those whose manifests have it
  std::string metric = "loss";
  bool greatest = false;  ///< is best; else the least
};

/// Where a checkpoint is: in the store, or on the machine's own disk.
enum class Tier { kStore, kLocal };

struct SaveStats {
  std::uint64_t step = 0;
  std::uint64_t bytes = 0;  ///< written by this rank
  Duration blocked{0};      ///< the caller stood still: waiting for the save before, and for the copy
  Duration total{0};        ///< until committed
  Tier tier = Tier::kStore;
};

class Machines;

/// A folder on the machine's own disk, or in its memory, for checkpoints that are made more often than the store's.
/// With one copy all ranks must see the same folder, and it is gone with the machine; with more, every rank's file is
/// on as many machines (machines.h), so that others' are enough when one is lost.
struct LocalTier {
  std::string path;
  int keep = 2;  ///< the newest ones
  int copies = 1;
  /// A name or address that all machines reach the first one by, as MASTER_ADDR: which network they are on.
  std::string meeting_point = "127.0.0.1";
  std::shared_ptr<Machines> machines = nullptr;  ///< from Machines::Meet; null: one folder for all ranks
};

struct SaveOptions {
  std::map<std::string, double> metrics;  ///< into the manifest, as rank 0 has them; what is not finite is left out
  bool to_store = true;
  bool to_local = false;  ///< first, where both are wanted
};

/// Saves asynchronously: the pieces are copied into a buffer that the writer keeps, and a background thread uploads and
/// commits. At most one save to each place is under way, and one at all where memory has a single buffer (see
/// local_group); the next one waits, unless the caller looks at busy() first. One caller thread. Destruction waits for
/// what is under way.
class Writer {
 public:
  struct Options {
    std::string url;  ///< s3://runs/llama-demo
    Retention retention;
    std::optional<LocalTier> local;
    /// The same ranks once more, for what is agreed about the local tier: then a save there goes on beside one to the
    /// store that is still on its way, from a second buffer, if `snapshot_bytes` says how large and the budget has room
    /// for both when the writer opens. Null: `local` shares the other group, and saves follow each other. On all ranks
    /// or none; memory may differ.
    std::shared_ptr<Group> local_group;
    std::uint64_t part_bytes = 8 * kMiB;
    std::uint64_t chunk_bytes = 1 * kMiB;  ///< 4 KiB to 1 GiB
    int parallel_parts = 4;
    std::uint64_t bandwidth = 0;  ///< bytes a second that this rank sends to the store at most; 0: no limit
    /// What a rank's upload to the store may take; beyond it the save fails on all ranks and leaves nothing behind.
    /// Zero: no limit.
    Duration upload_limit{0};
    /// Bytes of tensors in a Save of this rank, if known beforehand: the buffer, with 1 MiB for a header, is
    /// then allocated and its pages touched in the background, so that the first Save is as quick as later ones. Of
    /// two buffers neither grows beyond it.
    std::uint64_t snapshot_bytes = 0;
    Clock* clock = &SystemClock();  ///< must outlive the writer
    Logger log;
    Provenance written_by;               ///< goes into the manifest, as rank 0 has it
    std::optional<CheckpointId> parent;  ///< what the run went on from; later saves name the one before
    /// Called on a background thread, one call at a time, for each place once the checkpoint is committed there, with
    /// an error if it could not be.
    std::function<void(const Result<SaveStats>&)> on_done;
  };
  /// The snapshot is reserved in `budget`, which must outlive the writer, as long as the writer lives: a Save that
  /// needs more than the whole budget fails with kResourceExhausted.
  static Result<std::unique_ptr<Writer>> Open(object::Connection& connection, std::shared_ptr<Group> group,
                                              MemoryBudget& budget, Options options);
  virtual ~Writer() = default;

  /// Starts saving step `step`; collective: every rank calls it with the same step and options. Returns at once, but
  /// for a save that is still under way (see busy): the copy goes on beside the caller, who leaves the pieces' bytes as
  /// they are until WaitCopied has returned. Returns how long the caller was held up. Fails with the error of an
  /// earlier save, if one failed and Wait did not tell already, after having started this one. A save fails, and leaves
  /// no trace among the committed checkpoints, when any rank fails, when the pieces of all ranks do not cover every
  /// tensor exactly once, and with kAlreadyExists when the step is committed already. `meta` of rank 0 counts; its
  /// member kMetaModelConfig is what `millrace ckpt export` writes as config.json.
  virtual Result<Duration> Start(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                                 const SaveOptions& options = {}) = 0;
  /// Waits until the pieces of the last Start are copied and may change. Returns how long that took.
  virtual Duration WaitCopied() = 0;
  /// Start and WaitCopied.
  Result<Duration> Save(std::uint64_t step, const std::vector<SavePiece>& pieces, const Json& meta,
                        const SaveOptions& options = {});
  /// Start with such options would wait for a save that is under way. Ranks may differ; they agree before they leave a
  /// save out.
  virtual bool busy(const SaveOptions& next = {}) const = 0;
  /// Waits for all saves under way and what retention removes after them. Nothing if there was none since the last
  /// Wait. Of a save to both places it tells how that to the store went; of several the first that failed, else the
  /// last.
  virtual Result<std::optional<SaveStats>> Wait() = 0;
};

/// A committed checkpoint.
struct Entry {
  std::uint64_t step = 0;
  std::string key;  ///< of its manifest
  WallTime modified;
  bool pinned = false;
};
/// Committed checkpoints in ascending order of step. Those whose manifest is damaged, cut off or empty too, are among
/// them: opening one is kCorrupt. Blocks.
Result<std::vector<Entry>> ListCheckpoints(const object::ReadLocation& root, object::Call call = {});
/// Removes what `retention` lets go, and files of saves that never committed and are older than the newest commit. What
/// is pinned or held by a reader (marks.h) stays. Safe beside writers, readers that hold and other collectors
/// (docs/formats/checkpoint.md, "Removing, and fences"). With keep_best it reads every manifest. Blocks.
struct Collected {
  std::vector<std::uint64_t> removed_steps;
  std::uint64_t objects = 0, bytes = 0;  ///< files; with `dry_run` those that would go
  std::uint64_t uploads = 0;             ///< unfinished multipart uploads
  std::vector<std::uint64_t> committed;  ///< steps that were there before, in order
};
Result<Collected> CollectGarbage(const object::Location& root, Retention retention, bool dry_run,
                                 object::Call call = {});

/// Removes every checkpoint of a later step that is neither pinned nor held; `step` -1: all of them. For a run that
/// goes on from an earlier one. Blocks.
Result<Collected> RemoveAfter(const object::Location& root, std::int64_t step, bool dry_run, object::Call call = {});

/// Told how many bytes more are done, on any thread, one call at a time or several.
using Progress = std::function<void(std::uint64_t bytes)>;

/// Reads one committed checkpoint, wholly or in parts, on any number of ranks. Thread-safe. Every chunk that is touched
/// is verified against its crc32c; a mismatch is kCorrupt and names file and offset.
class Reader {
 public:
  /// `step` nothing: the newest. kNotFound when there is none.
  static Result<std::unique_ptr<Reader>> Open(object::Connection& connection, std::string_view url,
                                              std::optional<std::uint64_t> step = std::nullopt, object::Call call = {});
  virtual ~Reader() = default;
  virtual const Manifest& manifest() const = 0;
  virtual const std::string& name() const = 0;  ///< s3://runs/llama-demo/step-00000150
  /// Fills `into`, a whole number of elements, with those of the flattened tensor from `begin`. After a failure its
  /// content is unspecified. kNotFound when there is no such tensor, or its file has been removed meanwhile.
  virtual Status Read(std::string_view tensor, std::uint64_t begin, MutableByteSpan into, object::Call call = {}) = 0;
  /// Consecutive elements of a box of a tensor: a rank's shard, whatever shards it was saved in.
  struct Wanted {
    std::string tensor;
    std::uint64_t begin = 0;  ///< first element, counted within the box
    MutableByteSpan into;
    Box box = {};  ///< of the tensor; by default all of it
  };
  /// Many at once, with near ranges merged and up to `parallel` requests of up to 32 MiB in flight.
  virtual Status ReadMany(const std::vector<Wanted>& wanted, int parallel = 8, object::Call call = {}) = 0;
  struct Verified {
    std::uint64_t files = 0, chunks = 0, bytes = 0;
  };
  /// Reads and checks every byte.
  virtual Result<Verified> Verify(int parallel = 8, object::Call call = {}, const Progress& progress = {}) = 0;
};

/// A Hugging Face folder's *.safetensors files (or one file), behind the same reading interface, so that model weights
/// and checkpoints load alike: tensors are named kModelGroup + their name ("model/lm_head.weight"), and where the
/// folder has a config.json it is meta[kMetaModelConfig]. With a model.safetensors.index.json its shards count, else
/// model.safetensors, else every *.safetensors of the folder. No checksums exist there; sizes and offsets are checked.
Result<std::unique_ptr<Reader>> OpenSafetensors(object::Connection& connection, std::string_view url,
                                                object::Call call = {});

}  // namespace millrace::checkpoint
