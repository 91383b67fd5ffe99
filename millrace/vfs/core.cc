#include "millrace/vfs/core.h"

namespace millrace::vfs {

Core::Core(object::Store& s, cache::BlockCache& c, MemoryBudget& b, Options o)
    : store(s),
      cache(c),
      budget(b),
      options(std::move(o)),
      clock(*options.clock),
      began(options.clock->Wall()),
      table(options.prefix),
      metadata(*options.clock, options.metadata_ttl, options.negative_ttl, options.metadata_entries),
      resolver(store, metadata, *options.clock) {}

Entry Core::Tell(Inode& inode, const Metadata& state) {
  Entry entry;
  Attributes& a = entry.attributes;
  a.inode = inode.id;
  a.kind = inode.kind;
  a.linked = table.IsLinked(inode);
  entry.valid_for = metadata.ValidFor(state);
  if (inode.kind == Kind::kDirectory) {
    a.modified = began;
    return entry;
  }
  MutexLock lock(inode.mutex);
  if (inode.told.as_of <= state.as_of) inode.told = state;
  a.size = inode.writer ? inode.writer->size() : inode.told.size;
  a.modified = inode.writer ? inode.writer->modified() : inode.told.modified;
  if (inode.writer) entry.valid_for = Duration::zero();  // it grows
  return entry;
}

Result<Metadata> Core::FileState(Inode& inode, bool now, const object::Call& call) {
  {
    MutexLock lock(inode.mutex);
    if (inode.writer || !table.IsLinked(inode)) return inode.told;
  }
  std::string path = MR_TRY(table.PathOf(inode));
  Metadata state = MR_TRY(now ? resolver.RefreshFile(path, call) : resolver.Find(path, call));
  if (!state.is_file()) return Fail(Code::kStale, "{} was removed from the bucket", path);
  return state;
}

std::shared_ptr<Writer> Core::WriterOf(Inode& inode) {
  MutexLock lock(inode.mutex);
  return inode.writer;
}

Result<std::shared_ptr<Writer>> Core::StartWriter(Inode& inode, Writer::Start start) {
  const std::string key = start.key;
  auto writer = std::make_shared<Writer>(Writer::Environment{.store = store,
                                                             .budget = budget,
                                                             .clock = clock,
                                                             .part_bytes = options.write_part_bytes,
                                                             .parallel_parts = options.write_parallel_parts},
                                         std::move(start));
  MutexLock lock(inode.mutex);
  if (inode.writer) return Fail(Code::kBusy, "{} is open for writing already", key);
  inode.writer = writer;
  return writer;
}

Status Core::Publish(Inode& inode, Writer& writer, const object::Call& call) {
  auto published = MR_TRY(writer.Publish(call));
  if (!published) return {};
  if (auto path = table.PathOf(inode)) metadata.Put(*path, *published);
  table.SetLocal(inode, false);
  MutexLock lock(inode.mutex);
  inode.told = *published;
  return {};
}

void Core::EndWriter(Inode& inode, Writer& writer) {
  {
    MutexLock lock(inode.mutex);
    if (inode.writer.get() == &writer) inode.writer = nullptr;
  }
  // What never reached the store does not exist.
  if (table.IsLocal(inode) && !writer.stored()) table.Unlink(inode);
}

Status Core::CheckWritable() const {
  if (options.read_only) return Fail(Code::kReadOnly, "the tree is read-only");
  return {};
}

}  // namespace millrace::vfs
