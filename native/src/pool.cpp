#include "pool.hpp"

#include <pthread.h>

#include <algorithm>

#include "core_uses.hpp"
#include "fp_control.hpp"
#include "park.hpp"
#include "threads.hpp"

namespace tierup {
namespace {

// After another call found the pool taken, threads that wait leave the cores to it for so many jobs: some calls.
constexpr uint32_t kCrowdedJobs = 256;

// Several pieces a thread let the others go on when one worker wakes late or loses its core; a call ends when the last
// piece does, so they are small.
constexpr int64_t kPiecesPerThread = 16;
constexpr int64_t kMostPieces = 0xFFFF;  // a share counts them in 16 bits

struct Piece {
  int64_t begin, end;
};

// Piece `index` of `pieces` nearly equal ones. The longer ones are spread evenly, so that the shares of threads are the
// same parts of every range: a thread then finds in its cache what it wrote in the job before.
Piece cut(int64_t range, uint32_t pieces, uint32_t index) {
  const int64_t size = range / pieces, rest = range % pieces;
  const auto begin = [&](int64_t i) { return i * size + i * rest / pieces; };
  return {begin(index), begin(int64_t{index} + 1)};
}

// Pieces [first, end) of job `epoch`, as Pool::Share holds them.
uint64_t share_of(uint32_t epoch, int64_t first, int64_t end) {
  return uint64_t{epoch} << 32 | static_cast<uint64_t>(first) << 16 | static_cast<uint64_t>(end);
}

int64_t first_of(uint64_t share) { return static_cast<int64_t>(share >> 16 & 0xFFFF); }

int64_t end_of(uint64_t share) { return static_cast<int64_t>(share & 0xFFFF); }

}  // namespace

Pool::Pool(int threads)
    : threads_(std::max(threads, 1)),
      workers_(static_cast<size_t>(threads_ - 1)),
      shares_(static_cast<size_t>(threads_)) {}

uint32_t Pool::count_pieces(int64_t range, int64_t grain) const {
  const int64_t most = threads_ == 1 ? 1 : std::min(threads_ * kPiecesPerThread, kMostPieces);
  return static_cast<uint32_t>(std::clamp<int64_t>(range / std::max<int64_t>(grain, 1), 1, most));
}

void Pool::parallel_for(int64_t range, int64_t grain, RangeFn fn, void* context) noexcept {
  if (range <= 0) return;
  const uint32_t pieces = count_pieces(range, grain);
  if (pieces == 1) return fn(context, 0, range, 0);
  const Job job{fn, context, range, pieces, fp_control()};
  if (busy_.exchange(true, std::memory_order_acquire)) return run_alone(job);
  share(job);
  busy_.store(false, std::memory_order_release);
}

void Pool::run_alone(const Job& job) noexcept {
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed);
  if (taken_at_.load(std::memory_order_relaxed) != epoch) taken_at_.store(epoch, std::memory_order_relaxed);
  for (uint32_t i = 0; i < job.pieces; ++i) {
    const Piece piece = cut(job.range, job.pieces, i);
    job.fn(job.context, piece.begin, piece.end, 0);
  }
}

void Pool::share(const Job& job) noexcept {
  if (!started_) start_workers();
  shares_[0].patience.begin_work();
  job_ = job;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  for (int thread = 0; thread < threads_; ++thread) {
    const Piece share = cut(job.pieces, static_cast<uint32_t>(threads_), static_cast<uint32_t>(thread));
    shares_[static_cast<size_t>(thread)].left.store(share_of(epoch, share.begin, share.end), std::memory_order_release);
  }
  const int core = current_core();
  shares_[0].core.store(core, std::memory_order_relaxed);
  core_uses.note(core);
  // Sequentially consistent with wait_for_job(): either the worker sees the new epoch or we see that it parked.
  epoch_.store(epoch);
  if (parked_.load() != 0) unpark_all(epoch_);
  run_pieces(epoch, 0);
  wait_until_done(job.pieces);
}

// The first piece of job `epoch` that is left of a thread's share; -1 if none is. Neighbouring pieces run on one thread
// that way, which finds there what it fetched ahead.
int64_t Pool::claim(uint32_t epoch, int thread) noexcept {
  Share& share = shares_[static_cast<size_t>(thread)];
  uint64_t left = share.left.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(left >> 32) == epoch && first_of(left) != end_of(left)) {
    const uint64_t rest = share_of(epoch, first_of(left) + 1, end_of(left));
    if (share.left.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return first_of(left);
    }
  }
  return -1;
}

// Takes the later half of what is left of another thread's share, now that its own is used up. Whoever sees neither
// while the half changes hands goes without; the thief runs it.
bool Pool::steal(uint32_t epoch, int thread) noexcept {
  for (int turn = 1; turn < threads_; ++turn) {
    Share& share = shares_[static_cast<size_t>((thread + turn) % threads_)];
    uint64_t left = share.left.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(left >> 32) == epoch && first_of(left) != end_of(left)) {
      const int64_t first = first_of(left), end = end_of(left), middle = first + (end - first) / 2;
      const uint64_t rest = share_of(epoch, first, middle);
      if (share.left.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire)) {
        shares_[static_cast<size_t>(thread)].left.store(share_of(epoch, middle, end), std::memory_order_release);
        return true;
      }
    }
  }
  return false;
}

// Runs pieces of job `epoch` until none is left. The job's fields are read only after a claim: the job cannot end, and so
// job_ cannot change, before the claimed piece is reported done. A share is reported at once: between two cores, done_
// takes up to 0.2 µs to change hands.
void Pool::run_pieces(uint32_t epoch, int thread) noexcept {
  do {
    uint32_t ran = 0, pieces = 0;
    for (int64_t index; (index = claim(epoch, thread)) >= 0; ++ran) {
      pieces = job_.pieces;
      const Piece piece = cut(job_.range, pieces, static_cast<uint32_t>(index));
      if (thread != 0) set_fp_control(job_.fp_control);
      job_.fn(job_.context, piece.begin, piece.end, thread);
    }
    if (ran == 0) continue;
    // After this line the job may be over. The pool itself outlives everybody.
    if (done_.fetch_add(ran) + ran == pieces && caller_parked_.load()) unpark_all(done_);
  } while (steal(epoch, thread));
}

void Pool::wait_until_done(uint32_t pieces) noexcept {
  const auto done = [&] { return done_.load(std::memory_order_acquire) == pieces; };
  if (shares_[0].patience.spin_until(done, [&] { return worker_is_here(); }, is_crowded())) return;
  // A worker lost its core in the middle of a piece: spinning on would keep it from getting one back.
  caller_parked_.store(true);
  for (uint32_t now = done_.load(); now != pieces; now = done_.load()) park(done_, now);
  caller_parked_.store(false, std::memory_order_relaxed);
}

// Whether a thread was last seen on the core that this one has: it cannot go on while this one spins.
bool Pool::works_here(int thread) const noexcept {
  const int core = current_core();
  return core >= 0 && core == shares_[static_cast<size_t>(thread)].core.load(std::memory_order_relaxed);
}

bool Pool::is_crowded() const noexcept {
  return epoch_.load(std::memory_order_relaxed) - taken_at_.load(std::memory_order_relaxed) < kCrowdedJobs;
}

bool Pool::worker_is_here() const noexcept {
  for (int thread = 1; thread < threads_; ++thread) {
    if (works_here(thread)) return true;
  }
  return false;
}

uint32_t Pool::wait_for_job(uint32_t seen, int thread) noexcept {
  const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
  Share& share = shares_[static_cast<size_t>(thread)];
  if (!share.patience.spin_until(changed, [&] { return works_here(0); }, is_crowded())) {
    share.core.store(-1, std::memory_order_relaxed);
    parked_.fetch_add(1);
    park(epoch_, seen);
    parked_.fetch_sub(1);
    share.core.store(current_core(), std::memory_order_relaxed);
    share.patience.begin_work();
  }
  return epoch_.load(std::memory_order_acquire);
}

void Pool::work(int thread) noexcept {
  shares_[static_cast<size_t>(thread)].patience.begin_work();
  for (uint32_t epoch = 0; !stop_.load(std::memory_order_acquire); epoch = wait_for_job(epoch, thread)) {
    core_uses.note();
    run_pieces(epoch, thread);
  }
}

// A thread that cannot be started is a thread less, not an error: the caller runs what nobody claims.
void Pool::start_workers() noexcept {
  started_ = true;
  for (std::thread& worker : workers_) {
    const int thread = static_cast<int>(&worker - workers_.data()) + 1;
    worker = start_thread([this, thread] { work(thread); });
  }
}

void Pool::hold() noexcept {
  while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
}

void Pool::shutdown() noexcept {
  if (stop_.exchange(true)) return;
  hold();
  epoch_.fetch_add(1);
  unpark_all(epoch_);
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
  // busy_ stays taken: whoever still holds this pool runs inline from now on.
}

namespace {

std::atomic<int> wanted_threads{0};
std::atomic<Pool*> current{nullptr};

int default_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// The parent's workers do not exist in the child and its pool may be in any state: leave it alone and start afresh.
void forget_pool_in_child() { current.store(nullptr); }

// Registered before any thread of ours can exist.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, forget_pool_in_child);

}  // namespace

int threads() {
  const int wanted = wanted_threads.load();
  return wanted > 0 ? wanted : default_threads();
}

Pool& pool() {
  Pool* existing = current.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  Pool* fresh = new Pool(threads());
  if (current.compare_exchange_strong(existing, fresh)) return *fresh;
  delete fresh;  // another thread was first; this one never had workers
  return *existing;
}

void set_threads(int threads) {
  Pool* existing = current.load();
  if (existing != nullptr && existing->threads() == std::max(threads, 1)) return;
  wanted_threads.store(std::max(threads, 1));
  Pool* fresh = new Pool(threads);
  fresh->previous_ = current.load();
  while (!current.compare_exchange_weak(fresh->previous_, fresh)) {
  }
  if (fresh->previous_ != nullptr) fresh->previous_->shutdown();
}

}  // namespace tierup
