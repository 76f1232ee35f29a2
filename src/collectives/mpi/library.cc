#include "collectives/mpi/library.h"

#include <dlfcn.h>
#include <immintrin.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"

namespace invar::mpi {

// Open MPI's handles are addresses of objects of its library.
using Handle = void*;

// MPI_Status: the first three fields are the standard's.
struct Status {
  int source, tag, error, cancelled;
  size_t bytes;
};

struct Job::Functions {
  int (*init_thread)(int*, char***, int required, int* provided);
  int (*finalize)();
  int (*abort)(Handle, int);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*send)(const void*, int count, Handle type, int to, int tag, Handle);
  int (*irecv)(void*, int count, Handle type, int from, int tag, Handle, Handle* request);
  int (*test)(Handle* request, int* flag, Status*);
  int (*iprobe)(int from, int tag, Handle, int* flag, Status*);
  int (*get_count)(const Status*, Handle type, int*);
  int (*get_library_version)(char*, int*);
  Handle world, byte;
};

namespace {

constexpr int kAnyTag = -1, kSerialized = 2;  // MPI_ANY_TAG, MPI_THREAD_SERIALIZED
constexpr size_t kPiece = size_t{1} << 30;    // counts are ints
constexpr const char* kLibrary = "libmpi.so.40";

int number_in(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int value = otherwise;
  if (text) std::from_chars(text, text + std::strlen(text), value);
  return value;
}

std::unique_ptr<Job::Functions> open_library() {
  // Its own plug-ins look for its symbols, so that they must be everybody's.
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (!library)
    fail("a launcher started this process as one of several, and Open MPI cannot be opened: {}",
         ::dlerror());
  auto mpi = std::make_unique<Job::Functions>();
  const auto find = [library](const char* name, auto& into) {
    void* found = ::dlsym(library, name);
    if (!found) fail("expected Open MPI 4 in {}, found no {}", kLibrary, name);
    std::memcpy(&into, &found, sizeof found);
  };
  find("MPI_Init_thread", mpi->init_thread);
  find("MPI_Finalize", mpi->finalize);
  find("MPI_Abort", mpi->abort);
  find("MPI_Comm_rank", mpi->comm_rank);
  find("MPI_Comm_size", mpi->comm_size);
  find("MPI_Send", mpi->send);
  find("MPI_Irecv", mpi->irecv);
  find("MPI_Test", mpi->test);
  find("MPI_Iprobe", mpi->iprobe);
  find("MPI_Get_count", mpi->get_count);
  find("MPI_Get_library_version", mpi->get_library_version);
  find("ompi_mpi_comm_world", mpi->world);
  find("ompi_mpi_byte", mpi->byte);
  char version[4096] = "";  // Open MPI's longest is 256
  int length = 0;
  mpi->get_library_version(version, &length);
  if (!std::string_view(version).starts_with("Open MPI v4."))
    fail("expected Open MPI 4 in {}, found {}", kLibrary, version);
  return mpi;
}

// Looks until `is_there` says so, first without a pause, then with naps: MPI's own waits take a
// core for as long as nobody asks anything.
template <typename Look>
void wait_until(Look is_there) {
  constexpr int kSpins = 20'000;
  constexpr auto kShortest = std::chrono::microseconds(20),
                 kLongest = std::chrono::microseconds(500);
  for (int i = 0; i < kSpins; ++i) {
    if (is_there()) return;
    _mm_pause();
    if (i % 64 == 63) std::this_thread::yield();
  }
  for (auto nap = kShortest; !is_there(); nap = std::min(2 * nap, kLongest))
    std::this_thread::sleep_for(nap);
}

}  // namespace

Launch launch() {
  if (const int size = number_in("OMPI_COMM_WORLD_SIZE", 1); size > 1)
    return {number_in("OMPI_COMM_WORLD_RANK", 0), size, number_in("OMPI_COMM_WORLD_LOCAL_RANK", 0),
            number_in("OMPI_COMM_WORLD_LOCAL_SIZE", 1)};
  // A SLURM batch script has its variables as well; only srun --mpi=pmix gives a rank of PMIx.
  if (const int size = number_in("SLURM_STEP_NUM_TASKS", 1); size > 1 && std::getenv("PMIX_RANK"))
    return {number_in("PMIX_RANK", 0), size, number_in("SLURM_LOCALID", 0),
            number_in("SLURM_STEP_TASKS_PER_NODE", 1)};
  return {};
}

Job::Job() : mpi_(open_library().release()) {
  int provided = 0;
  mpi_->init_thread(nullptr, nullptr, kSerialized, &provided);
  if (provided < kSerialized)
    fail("expected Open MPI to work with several threads, found level {}", provided);
  mpi_->comm_rank(mpi_->world, &rank_);
  mpi_->comm_size(mpi_->world, &size_);
}

Job& Job::join() {
  static Job job;  // as there is one process, of one job
  return job;
}

void Job::send(int to, Tag tag, const void* data, size_t bytes) {
  if (bytes == 0) mpi_->send(data, 0, mpi_->byte, to, static_cast<int>(tag), mpi_->world);
  for (size_t at = 0; at < bytes; at += kPiece)
    mpi_->send(static_cast<const char*>(data) + at, static_cast<int>(std::min(kPiece, bytes - at)),
               mpi_->byte, to, static_cast<int>(tag), mpi_->world);
}

void Job::receive(int from, Tag tag, void* data, size_t bytes) {
  const auto receive_piece = [&](char* to, size_t count) {
    Handle request = nullptr;
    mpi_->irecv(to, static_cast<int>(count), mpi_->byte, from, static_cast<int>(tag), mpi_->world,
                &request);
    wait_until([&] {
      int flag = 0;
      mpi_->test(&request, &flag, nullptr);
      return flag != 0;
    });
  };
  char* to = static_cast<char*>(data);
  if (bytes == 0) receive_piece(to, 0);
  for (size_t at = 0; at < bytes; at += kPiece)
    receive_piece(to + at, std::min(kPiece, bytes - at));
}

Incoming Job::wait_for_any(int from) {
  Status status{};
  wait_until([&] {
    int flag = 0;
    mpi_->iprobe(from, kAnyTag, mpi_->world, &flag, &status);
    return flag != 0;
  });
  int bytes = 0;
  mpi_->get_count(&status, mpi_->byte, &bytes);
  return {static_cast<Tag>(status.tag), static_cast<size_t>(bytes)};
}

void Job::abort() {
  mpi_->abort(mpi_->world, 1);
  std::_Exit(1);
}

void Job::finish() {
  mpi_->finalize();
}

}  // namespace invar::mpi
