# SPDX-License-Identifier: MIT
"""Artifacts in a bucket of S3, or of a server that speaks its protocol; needs the extra `s3`.

Region, credentials and the address of the server come from where boto3 looks for them: variables
such as AWS_ENDPOINT_URL_S3, AWS_ACCESS_KEY_ID and AWS_PROFILE, or the machine's role.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from packhorse.artifacts.locations import job_folder, job_of_folder, split_id
from packhorse.errors import ArtifactError, ConfigError

#: What is kept in memory of an artifact while its size is not known.
_SPOOLED_BYTES: Final = 8 * 1024 * 1024
#: Objects listed or removed in one request, as the protocol allows.
_PAGE: Final = 1_000
_MISSING: Final = ("404", "NoSuchKey", "NotFound")


class BucketPlace:
    """The `packhorse.artifacts.Place` of a bucket; safe to share between threads."""

    def __init__(self, bucket: str, prefix: str, space: str) -> None:
        self.space = space
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._lock = threading.Lock()
        self._made: Any = None

    @classmethod
    def of_url(cls, url: str, space: str) -> BucketPlace:
        """The place of `s3://bucket/prefix`."""
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(
                f"artifacts={parts.scheme}://… is no place in a bucket: give s3://bucket/prefix; "
                "credentials come from the environment"
            )
        return cls(parts.netloc, parts.path, space)

    def write(self, artifact_id: str, chunks: Iterable[bytes]) -> None:
        # Spooled, so that a stream that breaks leaves nothing, and parts can be sent again.
        with tempfile.SpooledTemporaryFile(max_size=_SPOOLED_BYTES) as file:
            for chunk in chunks:
                file.write(chunk)
            file.seek(0)
            try:
                self._client.upload_fileobj(file, self._bucket, self._key(artifact_id))
            except Exception as error:
                raise self._trouble(artifact_id, error) from error

    def read(self, artifact_id: str) -> BinaryIO:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(artifact_id))
        except Exception as error:
            if _code(error) in _MISSING:
                raise FileNotFoundError(artifact_id) from error
            raise self._trouble(artifact_id, error) from error
        stream: BinaryIO = answer["Body"]
        return stream

    def url(self, artifact_id: str) -> str:
        return f"s3://{self._bucket}/{self._key(artifact_id)}"

    def discard(self, artifact_id: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._key(artifact_id))

    def jobs(self, after: str, limit: int) -> list[str]:
        found: dict[str, None] = {}
        space = f"{self._prefix}{self.space}/"
        # Behind all objects of that job: "0" comes after "/".
        behind = f"{space}{job_folder(after)}0" if after else space
        while len(found) < limit:
            page = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=space, StartAfter=behind, MaxKeys=_PAGE
            )
            keys = [each["Key"] for each in page.get("Contents", ())]
            names = (key.removeprefix(space).partition("/") for key in keys)
            found |= dict.fromkeys(job_of_folder(job) for job, slash, _ in names if slash)
            if not keys or not page.get("IsTruncated"):
                break
            behind = keys[-1]
        return list(found)[:limit]

    def remove(self, job_id: str) -> None:
        prefix = f"{self._prefix}{self.space}/{job_folder(job_id)}/"
        while True:
            page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, MaxKeys=_PAGE)
            keys = [{"Key": each["Key"]} for each in page.get("Contents", ())]
            if not keys:
                return
            deleted = self._client.delete_objects(Bucket=self._bucket, Delete={"Objects": keys})
            # What was not removed would be listed again, and this would never end.
            for error in deleted.get("Errors", ()):
                raise ArtifactError(
                    f"bucket {self._bucket!r} did not remove artifacts of job {job_id}: "
                    f"{error.get('Code')}; allow s3:DeleteObject there, or remove {prefix}",
                    job_id=job_id,
                )

    def _key(self, artifact_id: str) -> str:
        return self._prefix + "/".join(split_id(artifact_id))

    @property
    def _client(self) -> Any:
        with self._lock:
            if self._made is None:
                try:
                    import boto3  # noqa: PLC0415 - of the extra `s3`
                except ImportError as error:
                    raise ConfigError(
                        "artifacts in S3 need boto3, which is not installed: pip install "
                        "'packhorse[s3]'"
                    ) from error
                self._made = boto3.client("s3")
            return self._made

    def _trouble(self, artifact_id: str, error: Exception) -> ArtifactError:
        # The text of boto3's errors names bucket and operation, no credentials.
        job_id = artifact_id.partition("/")[2].rpartition("/")[0]
        return ArtifactError(
            f"bucket {self._bucket!r} did not do what was asked for job {job_id}: {error}",
            job_id=job_id,
        )


def _code(error: Exception) -> str:
    answer = getattr(error, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))
