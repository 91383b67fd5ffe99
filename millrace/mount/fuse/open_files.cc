#include "millrace/mount/fuse/open_files.h"

#include <algorithm>

namespace millrace::mount {

void OpenFiles::Restore(vfs::Tree& tree, const vfs::SessionState& state) {
  MutexLock lock(mutex_);
  for (const auto& [number, saved] : state.files) {
    next_number_ = std::max(next_number_, number + 1);
    auto handle = std::make_unique<FileHandle>();
    handle->file = tree.RestoreFile(saved, state);
    handle->opener = static_cast<pid_t>(saved.opener);
    handle->emptied_at_close = saved.emptied_at_close;
    if (!handle->file) continue;
    files_[number] = std::move(handle);
    opened_before_[saved.request] = number;
  }
  for (const auto& [number, saved] : state.directories) {
    next_number_ = std::max(next_number_, number + 1);
    auto directory = tree.RestoreDirectory(number, saved);
    if (!directory) continue;
    directories_[number] = std::move(directory);
    opened_before_[saved.request] = number;
  }
}

std::optional<std::uint64_t> OpenFiles::FindRepeated() {
  if (!RequestOrigin::Current().repeated) return std::nullopt;
  MutexLock lock(mutex_);
  const auto found = opened_before_.find(RequestOrigin::Current().number);
  return found == opened_before_.end() ? std::nullopt : std::optional(found->second);
}

std::uint64_t OpenFiles::AddFile(std::unique_ptr<FileHandle> handle, bool reads) {
  MutexLock lock(mutex_);
  const std::uint64_t number = next_number_++;
  if (session_ != nullptr) {
    vfs::SavedFile saved{.request = RequestOrigin::Current().number,
                         .reads = reads,
                         .emptied_at_close = handle->emptied_at_close,
                         .opener = handle->opener};
    handle->file->Describe(saved);
    session_->PutFile(number, saved);
  }
  files_[number] = std::move(handle);
  return number;
}

FileHandle* OpenFiles::FindFile(std::uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = files_.find(number);
  return found == files_.end() ? nullptr : found->second.get();
}

Status OpenFiles::CloseFile(std::uint64_t number) {
  std::unique_ptr<FileHandle> handle;
  {
    MutexLock lock(mutex_);
    if (auto node = files_.extract(number)) handle = std::move(node.mapped());
  }
  if (!handle) return {};
  Status closed = handle->file->Close();
  handle.reset();
  if (session_ != nullptr) session_->RemoveFile(number);  // only now: another process would have to close it
  return closed;
}

std::uint64_t OpenFiles::AddDirectory(std::unique_ptr<vfs::Directory> directory) {
  MutexLock lock(mutex_);
  const std::uint64_t number = next_number_++;
  if (session_ != nullptr) {
    session_->PutDirectory(number, {.inode = directory->inode(), .request = RequestOrigin::Current().number});
    directory->LogPages(number);
  }
  directories_[number] = std::move(directory);
  return number;
}

vfs::Directory* OpenFiles::FindDirectory(std::uint64_t number) {
  MutexLock lock(mutex_);
  const auto found = directories_.find(number);
  return found == directories_.end() ? nullptr : found->second.get();
}

void OpenFiles::CloseDirectory(std::uint64_t number) {
  std::unique_ptr<vfs::Directory> directory;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    if (auto node = directories_.extract(number)) directory = std::move(node.mapped());
  }
  if (session_ != nullptr) session_->RemoveDirectory(number);
}

}  // namespace millrace::mount
