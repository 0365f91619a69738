"""The tables of the ledger. Times are seconds since the epoch (UTC); documents are JSON text."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

SCHEMA_VERSION = "1"

meta = Table("meta", metadata, Column("key", String(64), primary_key=True), Column("value", Text, nullable=False))

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String(128), primary_key=True),
    Column("owner", String(128), nullable=False, index=True),
    Column("project_id", String(256)),
    Column("display_name", String(512)),
    Column("tags", Text, nullable=False),
    Column("user_metadata", Text),
    Column("sdk_version", String(64), nullable=False),
    Column("created_at", Float, nullable=False, index=True),
    Column("heartbeat_at", Float, nullable=False),
    Column("status", String(32), nullable=False),
    Column("finish", Text),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String(256), primary_key=True),
    Column("session_id", String(128), nullable=False, index=True),
    Column("owner", String(128), nullable=False, index=True),
    Column("requested_model", String(512), nullable=False),
    Column("spec", Text, nullable=False),
    Column("user_metadata", Text),
    Column("created_at", Float, nullable=False),
    Column("last_request_at", Float, nullable=False),
    # All seq_ids up to here are finished and contained in the snapshot.
    Column("snapshot_seq", BigInteger, nullable=False),
    Column("snapshot_folder", Text),
    Column("failed", Text),
)

operations = Table(
    "operations",
    metadata,
    Column("request_id", String(320), primary_key=True),
    # A run or a sampler.
    Column("target", String(256), nullable=False),
    Column("seq_id", BigInteger, nullable=False),
    Column("session_id", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("kind", String(32), nullable=False),
    # pending, done, failed or refused (at the door: it only holds the place of its seq_id)
    Column("state", String(16), nullable=False),
    Column("payload", LargeBinary),
    Column("result", LargeBinary),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    UniqueConstraint("target", "seq_id"),
    Index("operations_by_state", "state", "target", "seq_id"),
    Index("operations_by_time", "finished_at"),
    Index("operations_by_session", "session_id"),
)

samplers = Table(
    "samplers",
    metadata,
    Column("sampler_id", String(256), primary_key=True),
    Column("session_id", String(128), nullable=False, index=True),
    Column("owner", String(128), nullable=False),
    Column("base_model", String(512), nullable=False),
    Column("requested_model", String(512), nullable=False),
    Column("model_path", Text),
    # base, saved, snapshot or inflight
    Column("kind", String(16), nullable=False),
    Column("version", String(320), nullable=False),
    Column("run_id", String(256), index=True),
    # Place of an unnamed save in the order of its run.
    Column("seq_id", BigInteger),
    Column("folder", Text),
    Column("clones", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("tinker_path", String(640), primary_key=True),
    Column("run_id", String(256), nullable=False, index=True),
    Column("owner", String(128), nullable=False, index=True),
    # training, sampler or external
    Column("kind", String(16), nullable=False),
    Column("name", String(256), nullable=False),
    Column("folder", Text, nullable=False),
    Column("files", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("spec", Text, nullable=False),
    Column("requested_model", String(512), nullable=False),
    Column("user_metadata", Text),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, index=True),
    Column("public", Boolean, nullable=False),
)

losses = Table(
    "losses",
    metadata,
    Column("loss_id", String(256), primary_key=True),
    Column("session_id", String(128), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("upload", Text, nullable=False),
    Column("created_at", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("entry", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False, index=True),
    Column("owner", String(128), nullable=False, index=True),
    Column("event", String(64), nullable=False),
    Column("details", Text, nullable=False),
    Column("run_id", String(256)),
    Column("tinker_path", String(640)),
)
