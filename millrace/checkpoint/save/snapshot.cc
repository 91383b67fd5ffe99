#include "millrace/checkpoint/save/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <latch>
#include <tuple>

#include "millrace/base/copy.h"
#include "millrace/base/process/cores.h"
#include "millrace/checkpoint/format/safetensors.h"

namespace millrace::checkpoint {
namespace {

/// Files below this size are copied by one thread. A guess: waking threads takes longer than the copy.
constexpr std::uint64_t kParallelFrom = 16 * kMiB;
/// A guess: a few cores saturate the memory bandwidth of a machine.
constexpr int kMaxCopyThreads = 4;

Status CheckSlice(const SaveSlice& slice) {
  Status shape = slice.meta.Check(slice.name);
  if (!shape) return Fail(shape.error().WithCode(Code::kInvalidArgument));
  Status box = CheckBox(slice.box, slice.meta.shape);
  if (!box) return Fail(box.error().WithCode(Code::kInvalidArgument).Context(fmt::format("tensor {}", slice.name)));
  const std::uint64_t element = DTypeBytes(slice.meta.dtype), elements = slice.bytes.size() / element;
  const std::uint64_t total = ElementsOf(slice.box, slice.meta.shape);
  if (slice.bytes.size() % element != 0 || slice.begin > total || elements > total - slice.begin) {
    return Fail(Code::kInvalidArgument,
                "cannot save {} bytes from element {} of tensor {}: it has {} elements of {} bytes", slice.bytes.size(),
                slice.begin, slice.name, total, element);
  }
  return {};
}

/// Returns the slices in file order: largest elements first, so that every tensor is aligned.
std::vector<const SaveSlice*> InFileOrder(const std::vector<SaveSlice>& slices) {
  std::vector<const SaveSlice*> ordered;
  for (const SaveSlice& slice : slices) ordered.push_back(&slice);
  std::sort(ordered.begin(), ordered.end(), [](const SaveSlice* a, const SaveSlice* b) {
    const std::uint64_t element_a = DTypeBytes(a->meta.dtype), element_b = DTypeBytes(b->meta.dtype);
    if (element_a != element_b) return element_a > element_b;
    return std::tie(a->name, a->box, a->begin) < std::tie(b->name, b->box, b->begin);
  });
  return ordered;
}

SafetensorsEntry EntryOf(const SaveSlice& slice) {
  const std::uint64_t elements = slice.bytes.size() / DTypeBytes(slice.meta.dtype);
  SafetensorsEntry entry{slice.name, slice.meta};
  if (const Box box = Simplified(slice.box, slice.meta.shape); !box.whole()) {
    entry.name += fmt::format("[{}]", ToString(box));
    entry.meta.shape.assign(box.lengths.begin(), box.lengths.end());
  }
  if (elements != entry.meta.elements()) {
    entry.name += fmt::format("[{}:{}]", slice.begin, slice.begin + elements);
    entry.meta.shape = {static_cast<std::int64_t>(elements)};
  }
  return entry;
}

constexpr std::size_t kPage = 4 * kKiB, kHugePage = 2 * kMiB;

}  // namespace

Status PageBuffer::Grow(std::uint64_t size) {
  if (size <= size_) return {};
  Free();
  std::size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* mapped = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return Fail(Code::kResourceExhausted, "the system has no {} bytes for the snapshot of a checkpoint", rounded);
  }
  madvise(mapped, rounded, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
  size_ = rounded;
  return {};
}

void PageBuffer::Free() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

void PageBuffer::Touch() {
  for (std::size_t at = 0; at < size_; at += kPage) static_cast<volatile std::byte*>(data_)[at] = std::byte{0};
}

Snapshot::Snapshot(MemoryBudget& budget) : budget_(budget), threads_(std::min(UsableCores(), kMaxCopyThreads)) {
  if (threads_ > 1) copiers_ = std::make_unique<ThreadPool>("ckpt-copy", threads_ - 1, threads_);
}

Status Snapshot::Reserve(std::uint64_t bytes) {
  if (bytes > reservation_.bytes()) {
    file_ = {};
    buffer_.Free();
    reservation_.Release();
    auto reserved = budget_.Acquire(bytes);
    if (!reserved) {
      return Fail(reserved.error().Context(fmt::format(
          "this rank's part of a checkpoint takes {} bytes of memory (try a larger --memory-budget)", bytes)));
    }
    reservation_ = *std::move(reserved);
  }
  return buffer_.Grow(bytes);
}

bool Snapshot::FileLayout::Fits(const std::vector<SaveSlice>& others) const {
  if (id == 0 || others.size() != slices.size()) return false;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const SaveSlice &a = slices[i], &b = others[i];
    if (sizes[i] != b.bytes.size() || a.begin != b.begin || a.name != b.name || a.meta != b.meta || a.box != b.box)
      return false;
  }
  return true;
}

Status Snapshot::MakeFileLayout(const std::vector<SaveSlice>& slices) {
  layout_ = {};
  FileLayout layout{.id = next_id_++};
  layout.offsets.resize(slices.size());
  std::vector<const SaveSlice*> ordered = InFileOrder(slices);
  std::vector<SafetensorsEntry> entries;
  for (const SaveSlice* slice : ordered) {
    MR_TRY(CheckSlice(*slice));
    auto [tensor, added] = layout.part.tensors.emplace(slice->name, slice->meta);
    if (tensor->second != slice->meta)
      return Fail(Code::kInvalidArgument, "tensor {} is given two shapes", slice->name);
    entries.push_back(EntryOf(*slice));
  }
  if (!slices.empty()) {
    layout.header = MakeSafetensorsHeader(entries);
    layout.file_size = entries.back().offset + ordered.back()->bytes.size();
  }
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const SaveSlice& slice = *ordered[i];
    layout.offsets[&slice - slices.data()] = entries[i].offset;
    if (slice.bytes.empty()) continue;
    layout.part.slices.push_back({slice.name, slice.begin, slice.bytes.size() / DTypeBytes(slice.meta.dtype), "",
                                  entries[i].offset, Simplified(slice.box, slice.meta.shape)});
  }
  for (const SaveSlice& slice : slices) {
    layout.sizes.push_back(slice.bytes.size());
    layout.slices.push_back({slice.name, slice.meta, slice.begin, {}, slice.box});
  }
  layout_ = std::move(layout);
  return {};
}

Status Snapshot::Take(const std::vector<SaveSlice>& slices, const SliceReader& read) {
  file_ = {};
  if (!layout_.Fits(slices)) MR_TRY(MakeFileLayout(slices));
  if (slices.empty()) return {};
  MR_TRY(Reserve(layout_.file_size));
  std::byte* file = buffer_.span().data();
  std::memcpy(file, layout_.header.data(), layout_.header.size());
  std::vector<CopyStep> copies;
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (!slices[i].bytes.empty())
      copies.push_back({file + layout_.offsets[i], slices[i].bytes.data(), slices[i].bytes.size()});
  std::sort(copies.begin(), copies.end(), [](const CopyStep& a, const CopyStep& b) { return a.to < b.to; });
  if (!copies.empty()) MR_TRY(RunCopies(copies, read));
  file_ = {file, layout_.file_size};
  return {};
}

Status Snapshot::RunCopies(const std::vector<CopyStep>& copies, const SliceReader& read) {
  const std::uint64_t total = static_cast<std::uint64_t>(copies.back().to - copies.front().to) + copies.back().bytes;
  const int threads = total < kParallelFrom ? 1 : threads_;
  const std::byte* start = copies.front().to;
  // Thread i copies the i-th of `threads` equal parts of the file.
  auto copy_part = [&](int i) -> Status {
    const std::byte* begin = start + total / threads * i;
    const std::byte* end = i + 1 == threads ? start + total : start + total / threads * (i + 1);
    for (const CopyStep& copy : copies) {
      std::byte* to = copy.to < begin ? copy.to + std::min<std::size_t>(begin - copy.to, copy.bytes) : copy.to;
      std::size_t skipped = to - copy.to;
      if (to >= end || skipped == copy.bytes) continue;
      const ByteSpan from(copy.from + skipped, std::min<std::size_t>(end - to, copy.bytes - skipped));
      if (read) {
        MR_TRY(read({to, from.size()}, from));
      } else {
        CopyNonTemporal(to, from);
      }
    }
    return {};
  };
  std::vector<Status> outcomes(static_cast<std::size_t>(threads));
  std::latch others(threads - 1);
  for (int i = 1; i < threads; ++i) {
    copiers_->Submit([&, i] {
      outcomes[static_cast<std::size_t>(i)] = copy_part(i);
      others.count_down();
    });
  }
  outcomes[0] = copy_part(0);
  others.wait();
  for (Status& outcome : outcomes) MR_TRY(std::move(outcome));
  return {};
}

}  // namespace millrace::checkpoint
